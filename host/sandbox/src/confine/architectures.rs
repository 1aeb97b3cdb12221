//! The numbers of system calls, by architecture of the kernel.

use seccompiler::sock_filter;

/// An architecture whose numbers are known.
#[derive(Debug)]
pub(super) struct Architecture {
    /// Its name, as Rust has it.
    pub(super) name: &'static str,
    /// The value by which the kernel tells a filter the architecture of a call.
    pub(super) audit: u32,
    /// Instructions that run before those of any filter.
    pub(super) prologue: &'static [sock_filter],
    column: usize,
}

/// All of them.
pub(super) static ARCHITECTURES: [Architecture; 3] = [
    Architecture { name: "x86_64", audit: 0xc000_003e, prologue: NO_X32, column: 0 },
    Architecture { name: "aarch64", audit: 0xc000_00b7, prologue: &[], column: 1 },
    Architecture { name: "arm", audit: 0x4000_0028, prologue: &[], column: 2 },
];

/// Ends a process that makes a call by the numbers of x32, which a filter by number would let through.
const NO_X32: &[sock_filter] = &[
    sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 }, // load the number
    sock_filter { code: 0x35, jt: 0, jf: 1, k: 0x4000_0000 }, // skip the next one if it is smaller
    sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS },
];

impl Architecture {
    /// Returns that of this program.
    pub(super) fn here() -> Result<&'static Self, String> {
        let name = std::env::consts::ARCH;
        let known = ARCHITECTURES.iter().find(|known| known.name == name);
        known.ok_or_else(|| format!("seccomp can't be used: the system calls of {name} are unknown"))
    }

    /// Returns the numbers of those calls of a list that this architecture has.
    pub(super) fn numbers(&self, calls: &'static [SystemCall]) -> impl Iterator<Item = i64> + use<> {
        let column = self.column;
        calls.iter().filter_map(move |call| call.numbers.get(column).copied().filter(|number| *number != NONE))
    }
}

/// A system call: its name, and its numbers on each architecture.
#[derive(Debug)]
pub(super) struct SystemCall {
    #[cfg(test)]
    pub(super) name: &'static str,
    numbers: [i64; 3],
}

/// Stands for the number of a call that an architecture does not have.
const NONE: i64 = -1;

/// A list of system calls: name, number on x86_64, aarch64 and arm.
macro_rules! calls {
    ($($name:ident $x86_64:literal $aarch64:literal $arm:literal,)*) => {
        &[$(SystemCall { #[cfg(test)] name: stringify!($name), numbers: [$x86_64, $aarch64, $arm] }),*]
    };
}

/// System calls that neither process needs: they are for other programs, other processes, the kernel, and what a file is
/// besides its contents, which Landlock does not cover.
pub(super) const REFUSED: &[SystemCall] = calls! {
    accept 43 202 285, accept4 288 242 366, add_key 248 217 309, bpf 321 280 386, chmod 90 -1 15, chown 92 -1 182,
    chown32 -1 -1 212, chroot 161 51 61, clock_settime 227 112 262, clock_settime64 -1 -1 404, delete_module 176 106 129,
    execve 59 221 11, execveat 322 281 387, fchmod 91 52 94, fchmodat 268 53 333, fchmodat2 452 452 452, fchown 93 55 95,
    fchown32 -1 -1 207, fchownat 260 54 325, finit_module 313 273 379, fork 57 -1 2, fremovexattr 199 16 237,
    fsetxattr 190 7 228, futimesat 261 -1 326, init_module 175 105 128, io_uring_enter 426 426 426,
    io_uring_register 427 427 427, io_uring_setup 425 425 425, ioprio_set 251 30 314, kcmp 312 272 378,
    kexec_load 246 104 347, keyctl 250 219 311, kill 62 129 37, lchown 94 -1 16, lchown32 -1 -1 198, listen 50 201 284,
    lremovexattr 198 15 236, lsetxattr 189 6 227, migrate_pages 256 238 400, mknod 133 -1 14, mknodat 259 33 324,
    mount 165 40 21, move_mount 429 429 429, move_pages 279 239 344, name_to_handle_at 303 264 370, nice -1 -1 34,
    open_by_handle_at 304 265 371, open_tree 428 428 428, perf_event_open 298 241 364, pidfd_getfd 438 438 438,
    pidfd_open 434 434 434, pidfd_send_signal 424 424 424, pivot_root 155 41 218, process_madvise 440 440 440,
    process_vm_readv 310 270 376, process_vm_writev 311 271 377, ptrace 101 117 26, reboot 169 142 88,
    removexattr 197 14 235, removexattrat 466 466 466, request_key 249 218 310, setns 308 268 375, setpriority 141 140 97,
    setxattr 188 5 226, setxattrat 463 463 463, swapon 167 224 87, tkill 200 130 238, truncate 76 45 92,
    truncate64 -1 -1 193, umount2 166 39 52, unshare 272 97 337, userfaultfd 323 282 388, utime 132 -1 -1,
    utimensat 280 88 348, utimensat_time64 -1 -1 412, utimes 235 -1 269, vfork 58 -1 190, vmsplice 278 75 343,
};

/// Calls whose first argument is a process, which must be this one.
pub(super) const OWN_PROCESS: &[SystemCall] =
    calls! { rt_sigqueueinfo 129 138 178, rt_tgsigqueueinfo 297 240 363, tgkill 234 131 268, };
/// Calls whose first argument is a thread, which must be 0 for the one that calls.
pub(super) const OWN_THREAD: &[SystemCall] = calls! {
    sched_setaffinity 203 122 241, sched_setattr 314 274 380, sched_setparam 142 118 154, sched_setscheduler 144 119 156,
};
/// System calls that the compiler does not need either.
pub(super) const NETWORK: &[SystemCall] = calls! {
    bind 49 200 282, connect 42 203 283, send -1 -1 289, sendto 44 206 290, socket 41 198 281, socketpair 53 199 288,
};
/// Calls some of whose arguments are refused.
pub(super) const CLONE: &[SystemCall] = calls! { clone 56 220 120, };
pub(super) const CLONE3: &[SystemCall] = calls! { clone3 435 435 435, };
pub(super) const FCNTL: &[SystemCall] = calls! { fcntl 72 25 55, fcntl64 -1 -1 221, };
pub(super) const IOCTL: &[SystemCall] = calls! { ioctl 16 29 54, };
pub(super) const PRLIMIT: &[SystemCall] = calls! { prlimit64 302 261 369, };
pub(super) const SOCKET: &[SystemCall] = calls! { socket 41 198 281, };
