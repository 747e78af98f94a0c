// What a server does that has no file descriptor left for another connection.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace loopspec::serve {

// A descriptor that is given up when there is no other: with it a connection that cannot be served
// is taken and closed, instead of waiting at the door and holding up those behind it.
class SpareDescriptor {
 public:
  SpareDescriptor() { Open(); }
  ~SpareDescriptor() { Close(); }
  SpareDescriptor(const SpareDescriptor&) = delete;
  SpareDescriptor& operator=(const SpareDescriptor&) = delete;

  // Closes the connection that waits longest in `listener`'s queue, if one does.
  void ShedOne(int listener) {
    Close();
    const int taken = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (taken >= 0) close(taken);
    Open();
  }

 private:
  void Open() { file_ = open("/dev/null", O_RDONLY | O_CLOEXEC); }
  void Close() {
    if (file_ >= 0) close(file_);
  }
  int file_ = -1;
};

}  // namespace loopspec::serve
