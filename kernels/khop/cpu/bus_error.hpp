// A sentence for the log of a process that a bus error ends: what a read of a mapped file comes to
// if the file was cut off meanwhile. Nothing else that such a process leaves would name the cause.
#pragma once

#include <string>

namespace khop::cpu {

// From now on writes `text` to stderr when a bus error occurs, and then does what would have been
// done without: the exit status and handlers that were installed before stay as they are. Called
// again, it replaces the text. Not for several threads at a time.
void explain_bus_error(const std::string& text);

}  // namespace khop::cpu
