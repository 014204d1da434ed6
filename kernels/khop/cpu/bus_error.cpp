#include "khop/cpu/bus_error.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <system_error>

namespace khop::cpu {
namespace {

struct sigaction previous;
bool is_installed = false;
// Never freed: a text that was replaced may just be written.
std::atomic<const std::string*> message{nullptr};

// Calls async-signal-safe functions alone.
void on_bus_error(int number, siginfo_t* info, void*) {
  const int before = errno;
  // Other signals of this number were sent by kill(), which has nothing to do with files.
  const bool is_fault = info->si_code > 0;
  if (is_fault) {
    const std::string& text = *message;
    const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    static_cast<void>(written);
  }
  sigaction(number, &previous, nullptr);
  // A fault occurs again as soon as the handler returns; what was sent has to be sent again.
  if (!is_fault) raise(number);
  errno = before;
}

}  // namespace

void explain_bus_error(const std::string& text) {
  message = new std::string(text);
  if (is_installed) return;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, &previous) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot install a signal handler");
  }
  is_installed = true;
}

}  // namespace khop::cpu
