/* Kiln: AOTriton's interface, version and names. See flash.h. */
#ifndef AOTRITON_CONFIG_H
#define AOTRITON_CONFIG_H

/* The version of AOTriton whose interface this is; unsigned, as there. Kiln's own is KILN_VERSION (kiln/version.h). */
#define AOTRITON_VERSION_MAJOR 0u
#define AOTRITON_VERSION_MINOR 11u
#define AOTRITON_VERSION_PATCH 2u
/* A word, not a string, as there; zeros, since no commit of AOTriton's stands behind this library. */
#define AOTRITON_GIT_SHA1 0000000000000000000000000000000000000000

/* The namespace has no suffix. */
#define AOTRITON_ENABLE_SUFFIX 0
#define AOTRITON_NAME_SUFFIX
#define AOTRITON_NS aotriton

#define AOTRITON_API __attribute__((visibility("default")))

#endif
