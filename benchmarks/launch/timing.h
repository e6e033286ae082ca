/* What the programs of this folder share: the clock, medians, and functions of libraries by name. */
#ifndef KILN_BENCHMARKS_TIMING_H
#define KILN_BENCHMARKS_TIMING_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Microseconds. */
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void* get(void* library, const char* name) {
  void* address = library ? dlsym(library, name) : NULL;
  if (!address) fprintf(stderr, "%s: %s\n", name, dlerror()), exit(1);
  return address;
}

static void check(int result, const char* what) {
  if (result) fprintf(stderr, "%s: %d\n", what, result), exit(1);
}

static void* open_library(const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) fprintf(stderr, "%s\n", dlerror()), exit(1);
  return library;
}

static double median(double* values, int count) {
  qsort(values, (size_t)count, sizeof *values, compare);
  return values[count / 2];
}

#endif
