// Internal contracts. A broken one is a bug in loopspec, not in its input: stop at once with file
// and line.
#pragma once

#include <cstdio>
#include <cstdlib>

#define LOOPSPEC_CHECK(condition)                                                             \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      std::fprintf(stderr, "loopspec: internal error at %s:%d: %s does not hold\n", __FILE__, \
                   __LINE__, #condition);                                                     \
      std::abort();                                                                           \
    }                                                                                         \
  } while (false)
