// The filter of system calls, in the kernel's own small language (seccomp, BPF).
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "tessera/quality/sandbox_inside.h"

namespace tessera::quality {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kArchitecture = 0;  // Not known: install_sandbox_filter() refuses.
#endif

// Numbers of the second convention of x86-64 begin here (x32); none of the list below would match them.
constexpr std::uint32_t kOtherConvention = 0x40000000;

constexpr std::uint32_t kDenied[] = {
    // The network, and sockets of the machine's own services.
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    // Other processes: there are none to make (clone is looked at below) and none to look into.
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_kcmp,
    SYS_execveat,
#if defined(__x86_64__)
    SYS_fork,
    SYS_vfork,
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
#endif
    // The file system as a whole, and namespaces.
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_mount_setattr,
    SYS_unshare,
    SYS_setns,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_swapon,
    SYS_swapoff,
    SYS_quotactl,
    SYS_acct,
    SYS_fanotify_init,
    // Memory that the limit of address space does not count.
    SYS_memfd_create,
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_semget,
    SYS_msgget,
    SYS_mq_open,
    SYS_vmsplice,
    // The kernel itself.
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_kexec_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_reboot,
    SYS_syslog,
    SYS_personality,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_mbind,
    SYS_move_pages,
    SYS_migrate_pages,
    SYS_set_mempolicy,
    SYS_lookup_dcookie,
};

constexpr sock_filter load(std::size_t offset) {
  return {BPF_LD | BPF_W | BPF_ABS, 0, 0, static_cast<std::uint32_t>(offset)};
}
// Skips the next instruction unless the value compares so.
constexpr sock_filter unless(std::uint16_t how, std::uint32_t value) {
  return {static_cast<std::uint16_t>(BPF_JMP | BPF_K | how), 0, 1, value};
}
constexpr sock_filter end(std::uint32_t verdict) { return {BPF_RET | BPF_K, 0, 0, verdict}; }
constexpr std::uint32_t denied(int error) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error); }

constexpr std::size_t kFixed = 13;

constexpr auto make_filter() {
  std::array<sock_filter, kFixed + (2 * std::size(kDenied))> filter{};
  std::size_t at = 0;
  const auto add = [&filter, &at](sock_filter instruction) { filter[at++] = instruction; };
  add(load(offsetof(seccomp_data, arch)));
  add({BPF_JMP | BPF_JEQ | BPF_K, 1, 0, kArchitecture});
  add(end(SECCOMP_RET_KILL_PROCESS));
  add(load(offsetof(seccomp_data, nr)));
  add(unless(BPF_JGE, kOtherConvention));
  add(end(SECCOMP_RET_KILL_PROCESS));
  for (const std::uint32_t number : kDenied) {
    add(unless(BPF_JEQ, number));
    add(end(denied(EPERM)));
  }
  // The C library then asks for clone, whose flags the filter can see.
  add(unless(BPF_JEQ, SYS_clone3));
  add(end(denied(ENOSYS)));
  // Threads may be made, processes not: so the limits of one process are the limits of all.
  add({BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_clone});
  add(load(offsetof(seccomp_data, args)));
  add({BPF_JMP | BPF_JSET | BPF_K, 1, 0, CLONE_THREAD});
  add(end(denied(EPERM)));
  add(end(SECCOMP_RET_ALLOW));
  return filter;
}

constexpr auto kFilter = make_filter();
// An instruction that was not written would be one that loads; the last must be a verdict.
static_assert(kFilter.back().code == (BPF_RET | BPF_K) && kFilter.back().k == SECCOMP_RET_ALLOW);

}  // namespace

int install_sandbox_filter() {
  if (kArchitecture == 0) return ENOSYS;
  sock_fprog program{};
  program.len = kFilter.size();
  program.filter =
      const_cast<sock_filter*>(kFilter.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast): read only
  return syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0 ? 0 : errno;
}

}  // namespace tessera::quality
