//! Block devices that the kernel creates and removes on demand, with real uevents.

use std::fs;

use rustix::fs::{Access, access};
use tokio::sync::{Mutex, MutexGuard};

use super::skip::{is_root, skip};

const CONTROL: &str = "/sys/class/zram-control";

static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// The exclusive right to plug zram devices, so that a device that is plugged again gets the same number.
pub struct Zrams {
    _exclusive: MutexGuard<'static, ()>,
}

impl Zrams {
    /// Waits for the right. `None`, with the reason printed, where that is not possible.
    pub async fn claim() -> Option<Self> {
        if !is_root() {
            return None;
        }
        if let Err(error) = access(format!("{CONTROL}/hot_remove"), Access::WRITE_OK) {
            skip(&format!("cannot add a zram device: {error}"));
            return None;
        }
        Some(Self { _exclusive: EXCLUSIVE.lock().await })
    }

    /// Returns the name of the next device.
    pub fn next_name(&self) -> String {
        self.plug().name()
    }

    /// Adds a device with the lowest free number.
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
