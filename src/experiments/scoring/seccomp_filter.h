// The system calls that Python needs to compute, and no others.
#pragma once

#include <string>

namespace loopspec::measure {

// Whether this program was built with libseccomp.
bool HasSeccomp();

// The filter as BPF instructions of this machine, as bwrap's --seccomp takes them: calls that are
// not on the list fail with ENOSYS. Throws Error where it cannot be made.
std::string MakeSeccompFilter();

}  // namespace loopspec::measure
