//! An isolated machine for stories about hot-plug: optionally the real udevd, over a simulated sysfs, in namespaces.
//! Uevents are injected into this network namespace through the kernel (since Linux 4.18).

pub mod camera;
pub mod sysfs;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketType, bind, sendto, socket};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use self::camera::{Camera, controller};
use self::sysfs::{Device, Sysfs};
use super::node::wait_for;
use super::skip::{is_root, skip};

const UDEVD: &str = "/lib/systemd/systemd-udevd";

/// Sets up `/sys`, `/run` and `/dev`. `$1` is a directory with `sys`, or without it for the machine's own sysfs. It is
/// read-only, since `udevadm trigger` would overwrite the files.
const SET_UP: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for node in null zero full random urandom tty; do cp -a "/dev/$node" "$1/dev/"; done
mount --move "$1/dev" /dev
if [ -d "$1/sys" ]; then mount --bind "$1/sys" /sys && mount -o remount,ro,bind /sys; fi
mkdir -p /run/udev/rules.d
echo ready
exec cat
"#;

/// The machine. It ends with all its processes on drop.
pub struct Machine {
    /// Keeps the namespaces; ends when its standard input is closed.
    holder: Child,
    udevd: Option<Child>,
    sysfs: Option<Sysfs>,
    uevents: OwnedFd,
    _directory: tempfile::TempDir,
}

impl Machine {
    /// Creates a machine with an empty USB controller. `None`, with the reason printed, where that is not possible.
    pub fn new() -> Option<Self> {
        let directory = usable()?;
        let sysfs = Sysfs::new(directory.path().join("sys"));
        let machine = Self::start(directory, Some(sysfs))?;
        controller().iter().for_each(|device| machine.add(device));
        Some(machine)
    }

    /// Creates a machine with this machine's devices, but its own `/dev` and udev.
    pub fn with_real_devices() -> Option<Self> {
        Self::start(usable()?, None)
    }

    fn start(directory: tempfile::TempDir, sysfs: Option<Sysfs>) -> Option<Self> {
        fs::create_dir(directory.path().join("dev")).unwrap();
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--net", "sh", "-c", SET_UP, "sh"]).arg(directory.path());
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        if ready != "ready\n" {
            let _ = holder.wait(); // it ended before it was ready
            skip("this needs namespaces of mounts and networks");
            return None;
        }
        let uevents = netlink_of(holder.id());
        Some(Self { holder, udevd: None, sysfs, uevents, _directory: directory })
    }

    /// Returns a command that runs on the machine.
    pub fn command(&self, program: &Path) -> Command {
        self.entering(&["--mount", "--net"], program)
    }

    /// Returns a command that sees the machine's files from another network namespace, as a pod does.
    pub fn command_in_pod(&self, program: &Path) -> Command {
        self.entering(&["--mount"], program)
    }

    fn entering(&self, namespaces: &[&str], program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string()]).args(namespaces).arg("--").arg(program);
        // udev's programs refuse a sysfs that is not real, and a root directory other than that of process 1.
        command.env("SYSTEMD_DEVICE_VERIFY_SYSFS", "0").env("SYSTEMD_IGNORE_CHROOT", "1");
        command
    }

    /// Returns a path of the machine, as this process sees it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.holder.id()))
    }

    /// Starts udevd with Debian's rules and these.
    pub async fn start_udevd(&mut self, rules: &str) {
        fs::write(self.path("/run/udev/rules.d/99-story.rules"), rules).unwrap();
        let udevd =
            self.command(Path::new(UDEVD)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.udevd = Some(udevd.unwrap());
        let control = self.path("/run/udev/control");
        wait_for("udevd", || control.exists(), |there| *there).await;
        if self.sysfs.is_some() {
            controller().iter().for_each(|device| self.inject(&device.uevent("add")));
        }
    }

    /// Waits until udevd is idle.
    pub async fn wait_until_idle(&self) {
        let wait_until_idle =
            |timeout: &str| self.command(Path::new("udevadm")).args(["settle", "--timeout", timeout]).status();
        assert!(wait_until_idle("30").unwrap().success(), "udevd did not come to rest");
    }

    /// Plugs in cameras in quick succession.
    pub fn plug(&self, cameras: &[Camera]) {
        for device in cameras.iter().flat_map(Camera::devices) {
            self.add(&device);
            self.inject(&device.uevent("add"));
        }
    }

    /// Plugs in a camera without a uevent.
    pub fn plug_silently(&self, camera: &Camera) {
        camera.devices().iter().for_each(|device| self.add(device));
    }

    /// Unplugs cameras.
    pub fn unplug(&self, cameras: &[Camera]) {
        let devices: Vec<Device> = cameras.iter().flat_map(Camera::devices).collect();
        for device in devices.iter().rev() {
            self.remove(device);
            self.inject(&device.uevent("remove"));
        }
    }

    /// Adds a device as the kernel does before it sends the uevent: in sysfs, and with its node in devtmpfs.
    fn add(&self, device: &Device) {
        self.sysfs.as_ref().unwrap().add(device);
        if let Some((name, major, minor)) = device.node() {
            let node = self.path(&format!("/dev/{name}"));
            fs::create_dir_all(node.parent().unwrap()).unwrap();
            let mode = Mode::from_raw_mode(0o600);
            mknodat(CWD, &node, FileType::CharacterDevice, mode, makedev(major, minor)).unwrap();
        }
    }

    fn remove(&self, device: &Device) {
        self.sysfs.as_ref().unwrap().remove(device);
        if let Some((name, _, _)) = device.node() {
            fs::remove_file(self.path(&format!("/dev/{name}"))).unwrap();
        }
    }

    /// Sends a kernel uevent to all listeners in the namespace.
    pub fn inject(&self, uevent: &[u8]) {
        let length = u32::try_from(16 + uevent.len()).unwrap();
        let (kind, request) = (0x10_u16, 1_u16); // the first type that is no control message; NLM_F_REQUEST
        let mut message = length.to_ne_bytes().to_vec();
        message.extend([kind.to_ne_bytes(), request.to_ne_bytes()].concat());
        message.extend([0; 8]); // sequence and port
        message.extend(uevent);
        sendto(&self.uevents, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(udevd) = &mut self.udevd {
            let _ = kill_process(Pid::from_child(udevd), Signal::TERM); // it ends its workers
            let _ = udevd.wait();
        }
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn usable() -> Option<tempfile::TempDir> {
    if !is_root() {
        return None;
    }
    if !Path::new(UDEVD).exists() {
        skip("udevd is not installed: run 'make packages'");
        return None;
    }
    Some(tempfile::tempdir().unwrap())
}

/// Opens a netlink socket in the network namespace of a process.
fn netlink_of(process: u32) -> OwnedFd {
    let open = move || {
        let namespace = fs::File::open(format!("/proc/{process}/ns/net")).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let fd = socket(AddressFamily::NETLINK, SocketType::RAW, Some(KOBJECT_UEVENT)).unwrap();
        bind(&fd, &SocketAddrNetlink::new(0, 0)).unwrap();
        fd
    };
    thread::spawn(open).join().unwrap()
}
