#include "options.h"

#include <stdarg.h>

#include "error.h"

namespace kiln {

void log(const Options& options, int32_t level, const char* format, ...) {
  if (!options.log || level > options.log_level) return;
  FixedText<kSentenceBytes> text;
  va_list arguments;
  va_start(arguments, format);
  text.add_list(format, arguments);
  va_end(arguments);
  options.log(level, text.c_str(), options.log_user);
}

}  // namespace kiln
