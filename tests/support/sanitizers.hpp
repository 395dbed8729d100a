/// What a sanitized build's tests want of its sanitizers. For the mains alone: the sanitizer asks the executable.
#pragma once

#ifdef __SANITIZE_ADDRESS__
/// An allocation that is too large fails as it does elsewhere, which tests want to see, instead of ending the process.
/// The environment's ASAN_OPTIONS come on top.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif
