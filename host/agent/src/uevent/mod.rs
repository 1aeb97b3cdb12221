//! Tells when devices come, go or change, as the kernel and udevd say.
//!
//! ```text
//! kernel ──► group 1 ┐
//!                    ├─► Listener ──► Heard (one value) ──► Uevents, one for each Configuration
//! udevd  ──► group 2 ┘
//! ```
//! Without udevd the kernel's event is told at once: its device node is there by then (devtmpfs). With udevd, when udevd is
//! through with its rules, or after a second. Only that something happened in a subsystem is passed on: what there is,
//! sysfs says. So an event that is lost costs nothing as long as its loss is noticed, and nobody has to keep up.

mod heard;
mod message;
mod socket;
mod waiting;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep_until;
use tracing::{debug, info, trace, warn};

pub use self::heard::Mark;

use self::heard::Heard;
use self::message::{Uevent, from_kernel, from_udevd};
use self::socket::{Received, Sender, Socket};
use self::waiting::Waiting;

/// What has been heard; cheap to clone, and costs nothing while nothing happens.
#[derive(Debug, Clone)]
pub struct Uevents {
    heard: watch::Receiver<Heard>,
}

impl Uevents {
    /// This moment.
    pub fn mark(&self) -> Mark {
        self.heard.borrow().now()
    }

    /// Waits until something happens in one of the subsystems (`*` is all of them), or has happened since `mark`. For ever
    /// if nothing can be heard.
    pub async fn after(&mut self, mark: Mark, subsystems: &BTreeSet<String>) {
        if self.heard.wait_for(|heard| heard.concerns(subsystems, mark)).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Hears nothing.
impl Default for Uevents {
    fn default() -> Self {
        Self { heard: watch::channel(Heard::default()).1 }
    }
}

/// Equal if they hear the same.
impl PartialEq for Uevents {
    fn eq(&self, other: &Self) -> bool {
        self.heard.same_channel(&other.heard)
    }
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Listener {
    uevents: Uevents,
    task: JoinHandle<()>,
}

impl Listener {
    /// Starts: what happens from now on is heard. `udev_data` is udev's database, usually `/run/udev/data`; beside it
    /// udevd shows whether it runs.
    ///
    /// Where nothing can be heard (a sandbox without netlink), that is logged, and the intervals of handlers have to do.
    pub fn start(udev_data: &Path) -> Self {
        let (sender, heard) = watch::channel(Heard::default());
        let (udevd, socket) = (Udevd::beside(udev_data), Socket::open());
        let task = tokio::spawn(async move {
            let Err(error) = listen(socket, &udevd, &sender).await;
            warn!("uevents can't be heard: {error}; devices are looked for at the intervals of handlers alone");
        });
        Self { uevents: Uevents { heard }, task }
    }

    /// What it hears.
    pub fn uevents(&self) -> Uevents {
        self.uevents.clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(
    socket: io::Result<Socket>,
    udevd: &Udevd,
    heard: &watch::Sender<Heard>,
) -> io::Result<std::convert::Infallible> {
    let mut socket = socket?;
    let mut waiting = Waiting::default();
    info!(udevd = udevd.runs(), "listening to uevents");
    loop {
        let mut batch = Batch::default();
        let next = waiting.next(Instant::now());
        tokio::select! {
            received = batch.fill(&mut socket, &mut waiting, udevd) => received?,
            () = at(next) => batch.woken = waiting.due(udevd.is_idle(), Instant::now()),
        }
        batch.tell(heard);
    }
}

/// What one turn came to.
#[derive(Debug, Default)]
struct Batch {
    woken: BTreeSet<String>,
    lost: bool,
}

impl Batch {
    async fn fill(&mut self, socket: &mut Socket, waiting: &mut Waiting, udevd: &Udevd) -> io::Result<()> {
        let mut runs = None;
        let take = |received: Received<'_>| match received {
            Received::Lost => self.lost = true,
            Received::Message(sender, message) => {
                let Some(event) = parse(sender, message) else { return };
                let runs = *runs.get_or_insert_with(|| udevd.runs());
                if waiting.take(sender, event.subsystem, runs, Instant::now()) {
                    self.woken.insert(event.subsystem.to_owned());
                }
            }
        };
        socket.receive(take).await
    }

    fn tell(self, heard: &watch::Sender<Heard>) {
        if self.lost {
            warn!("uevents were lost: everything is looked at again");
            heard.send_modify(Heard::miss);
        }
        if !self.woken.is_empty() {
            heard.send_modify(|heard| heard.note(self.woken));
        }
    }
}

fn parse(sender: Sender, message: &[u8]) -> Option<Uevent<'_>> {
    let parsed = match sender {
        Sender::Kernel => from_kernel(message),
        Sender::Udevd => from_udevd(message),
    };
    match &parsed {
        Ok(event) => trace!(?sender, event.action, event.subsystem, event.devpath, "uevent"),
        Err(error) => debug!(?sender, "not understood: {error}"),
    }
    parsed.ok()
}

/// Waits for a moment, or for ever.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// What udevd shows of itself in its directory.
#[derive(Debug)]
struct Udevd {
    control: PathBuf,
    queue: PathBuf,
}

impl Udevd {
    fn beside(udev_data: &Path) -> Self {
        Self { control: udev_data.with_file_name("control"), queue: udev_data.with_file_name("queue") }
    }

    /// Its control socket is there.
    fn runs(&self) -> bool {
        self.control.exists()
    }

    /// It has no events to work on.
    fn is_idle(&self) -> bool {
        !self.queue.exists()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn udevd_runs_if_its_control_socket_is_beside_the_database() {
        let run = tempfile::tempdir().unwrap();
        let udevd = Udevd::beside(&run.path().join("data"));
        assert!(!udevd.runs() && udevd.is_idle());
        for name in ["control", "queue"] {
            std::fs::write(run.path().join(name), "").unwrap();
        }
        assert!(udevd.runs() && !udevd.is_idle());
    }

    #[tokio::test]
    async fn what_happened_since_the_mark_is_not_missed() {
        let (sender, heard) = watch::channel(Heard::default());
        let mut uevents = Uevents { heard };
        let tty = BTreeSet::from(["tty".to_owned()]);
        let mark = uevents.mark();
        Batch { woken: tty.clone(), lost: false }.tell(&sender);
        uevents.after(mark, &tty).await;
        let mark = uevents.mark();
        Batch { woken: BTreeSet::from(["usb".to_owned()]), lost: false }.tell(&sender);
        assert!(timeout(Duration::from_millis(50), uevents.after(mark, &tty)).await.is_err(), "another subsystem");
        Batch { woken: BTreeSet::new(), lost: true }.tell(&sender);
        uevents.after(mark, &tty).await;
    }

    #[tokio::test]
    async fn nothing_is_heard_after_the_end() {
        let mut uevents = Uevents::default();
        let all = BTreeSet::from(["*".to_owned()]);
        assert!(timeout(Duration::from_millis(50), uevents.after(Mark::default(), &all)).await.is_err());
    }
}
