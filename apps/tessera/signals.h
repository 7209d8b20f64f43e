// Signals that end a program, as commands with threads take them: every thread blocks them but where it says so.
#pragma once

#include <pthread.h>

#include <csignal>

namespace tessera::app {

// While it exists, SIGINT and SIGTERM reach this thread and do what they do by default: end the program.
class TakesSignals {
 public:
  TakesSignals() {
    const sigset_t signals = ending_signals();
    pthread_sigmask(SIG_UNBLOCK, &signals, &previous_);
  }
  ~TakesSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  TakesSignals(const TakesSignals&) = delete;
  TakesSignals& operator=(const TakesSignals&) = delete;

  static sigset_t ending_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    return signals;
  }

 private:
  sigset_t previous_{};
};

}  // namespace tessera::app
