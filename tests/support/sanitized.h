// Whether the build has a sanitizer: tests that take ten times as long there do less of the same.
#pragma once

namespace loopspec {

#if defined(__has_feature)
#define LOOPSPEC_HAS_FEATURE(name) __has_feature(name)
#else
#define LOOPSPEC_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || LOOPSPEC_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || LOOPSPEC_HAS_FEATURE(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif

#undef LOOPSPEC_HAS_FEATURE

}  // namespace loopspec
