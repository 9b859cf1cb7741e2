// One exception type; its kind decides which Python exception a caller sees.
#pragma once

#include <stdexcept>
#include <string>

namespace rocenante {

enum class ErrorKind {
  usage,      // this call is wrong by itself: ValueError
  config,     // a ROCENANTE_* variable is malformed or differs between ranks: ConfigError
  mismatch,   // ranks made different calls: MismatchError
  timeout,    // a wait outlasted its time: TimeoutError
  peer_lost,  // a peer died, closed or failed: PeerLostError
  aborted,    // abort() or an earlier failure ended the communicator: AbortedError
  system,     // the operating system refused something: SystemError_
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// "text: No such file or directory (errno 2)"
std::string with_errno(const std::string& text, int error_number);

}  // namespace rocenante
