//! Block devices that the kernel makes and removes on demand, with all their uevents.

use std::fs;

use rustix::fs::{Access, access};
use tokio::sync::{Mutex, MutexGuard};

use super::skip::{is_root, skip};

const CONTROL: &str = "/sys/class/zram-control";

static TURN: Mutex<()> = Mutex::const_new(());

/// The right to plug zram devices. One story has it at a time, so that one that plugs a device again gets the same number.
pub struct Zrams {
    _turn: MutexGuard<'static, ()>,
}

impl Zrams {
    /// None, with the reason, where it can't be done.
    pub async fn claim() -> Option<Self> {
        if !is_root() {
            return None;
        }
        if let Err(error) = access(format!("{CONTROL}/hot_remove"), Access::WRITE_OK) {
            skip(&format!("cannot add a zram device: {error}"));
            return None;
        }
        Some(Self { _turn: TURN.lock().await })
    }

    /// What the next device will be called.
    pub fn next_name(&self) -> String {
        self.plug().name()
    }

    /// Adds a device, of the lowest free number.
    pub fn plug(&self) -> Zram {
        let number = fs::read_to_string(format!("{CONTROL}/hot_add")).unwrap();
        Zram { number: number.trim().to_owned() }
    }
}

/// A plugged device.
pub struct Zram {
    number: String,
}

impl Zram {
    pub fn name(&self) -> String {
        format!("zram{}", self.number)
    }

    pub fn unplug(self) {
        fs::write(format!("{CONTROL}/hot_remove"), &self.number).unwrap();
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write(format!("{CONTROL}/hot_remove"), &self.number); // it may be unplugged already
    }
}
