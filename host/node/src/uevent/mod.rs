//! Uevents: notification of device changes by the kernel and udevd.
//!
//! ```text
//! kernel ──► group 1 ┐
//!                    ├─► task ──► SubsystemEvents (one value) ──► Uevents, one for each Configuration
//! udevd  ──► group 2 ┘
//! ```
//! Without udevd a kernel event is delivered at once: its device node exists by then (devtmpfs). With udevd it is delivered
//! when udevd's rules have run, or after a second. Only the subsystem of an event is passed on; sysfs has the devices.
//! Therefore events may be lost as long as the loss is noticed, and no consumer has to keep up.

mod message;
mod pending_events;
mod socket;
mod subsystem_events;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tracing::{debug, info, trace, warn};

pub use self::subsystem_events::Mark;

use self::message::{Uevent, from_fields, from_udevd};
use self::pending_events::PendingEvents;
use self::socket::{Received, Sender, Socket};
use self::subsystem_events::SubsystemEvents;
use crate::sleep_until_some;

/// A subscription to uevents; cheap to clone. A task receives them until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Uevents {
    events: watch::Receiver<SubsystemEvents>,
    _task: Arc<JoinSet<()>>,
}

impl Uevents {
    /// Starts to receive events. `udev_data` is udev's database, usually `/run/udev/data`; files beside it show whether
    /// udevd runs.
    ///
    /// If events can't be received (a sandbox without netlink), that is logged, and only the intervals of handlers start
    /// rounds.
    pub fn receive(udev_data: &Path) -> Self {
        let (sender, events) = watch::channel(SubsystemEvents::default());
        let (udevd, socket) = (Udevd::beside(udev_data), Socket::open());
        let task = async move {
            let Err(error) = listen(socket, &udevd, &sender).await;
            warn!("uevents can't be received: {error}; only the intervals of handlers start rounds");
        };
        Self { events, _task: Arc::new(JoinSet::from_iter([task])) }
    }

    /// Returns the current position in the sequence of events.
    pub fn mark(&self) -> Mark {
        self.events.borrow().now
    }

    /// Waits for an event after `mark` in one of the subsystems (`*` is all of them), and returns when the last one came.
    /// Waits forever if events can't be received.
    pub async fn after(&mut self, mark: Mark, subsystems: &BTreeSet<String>) -> Option<Instant> {
        if self.events.wait_for(|events| events.matches(subsystems, mark)).await.is_err() {
            std::future::pending::<()>().await;
        }
        self.events.borrow().at
    }
}

/// Receives no events.
impl Default for Uevents {
    fn default() -> Self {
        Self { events: watch::channel(SubsystemEvents::default()).1, _task: Arc::default() }
    }
}

async fn listen(
    socket: io::Result<Socket>,
    udevd: &Udevd,
    events: &watch::Sender<SubsystemEvents>,
) -> io::Result<std::convert::Infallible> {
    let mut socket = socket?;
    let mut pending = PendingEvents::default();
    let source = if udevd.runs() { "udevd" } else { "the kernel alone, as no udevd runs" };
    info!("receiving uevents of {source}");
    loop {
        let mut batch = Batch::default();
        let next = pending.next(Instant::now());
        tokio::select! {
            received = batch.fill(&mut socket, &mut pending, udevd) => received?,
            () = sleep_until_some(next.map(Into::into)) => batch.subsystems = pending.due(udevd.is_idle(), Instant::now()),
        }
        batch.publish(events);
        // While more wait, the socket is always ready, and nobody would look at other sockets.
        yield_now().await;
    }
}

/// The events of one iteration.
#[derive(Debug, Default)]
struct Batch {
    subsystems: BTreeSet<String>,
    lost: bool,
}

impl Batch {
    async fn fill(&mut self, socket: &mut Socket, pending: &mut PendingEvents, udevd: &Udevd) -> io::Result<()> {
        let mut runs = None;
        let take = |received: Received<'_>| match received {
            Received::Lost => self.lost = true,
            Received::Message(sender, message) => {
                let Some(event) = parse(sender, message) else { return };
                let runs = *runs.get_or_insert_with(|| udevd.runs());
                if pending.take(sender, event.subsystem, runs, Instant::now()) {
                    self.subsystems.insert(event.subsystem.to_owned());
                }
            }
        };
        socket.receive(take).await
    }

    fn publish(self, events: &watch::Sender<SubsystemEvents>) {
        if self.lost {
            warn!("uevents were lost; starting a round of every handler that uses them");
            events.send_modify(SubsystemEvents::record_loss);
        }
        if !self.subsystems.is_empty() {
            events.send_modify(|events| events.record(self.subsystems));
        }
    }
}

fn parse(sender: Sender, message: &[u8]) -> Option<Uevent<'_>> {
    let parsed = match sender {
        Sender::Kernel => from_fields(message),
        Sender::Udevd => from_udevd(message),
    };
    match &parsed {
        Ok(event) => trace!(?sender, event.action, event.subsystem, event.devpath, "uevent"),
        Err(error) => debug!(?sender, "invalid uevent: {error}"),
    }
    parsed.ok()
}

/// The files by which udevd shows its state.
#[derive(Debug)]
struct Udevd {
    control: PathBuf,
    queue: PathBuf,
}

impl Udevd {
    fn beside(udev_data: &Path) -> Self {
        Self { control: udev_data.with_file_name("control"), queue: udev_data.with_file_name("queue") }
    }

    /// Returns whether its control socket exists.
    fn runs(&self) -> bool {
        self.control.exists()
    }

    /// Returns whether its event queue is empty.
    fn is_idle(&self) -> bool {
        !self.queue.exists()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures::poll;
    use rustix::net::sockopt::set_socket_send_buffer_size;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn udevd_runs_if_its_control_socket_exists() {
        let run = tempfile::tempdir().unwrap();
        let udevd = Udevd::beside(&run.path().join("data"));
        assert!(!udevd.runs() && udevd.is_idle());
        for name in ["control", "queue"] {
            std::fs::write(run.path().join(name), "").unwrap();
        }
        assert!(udevd.runs() && !udevd.is_idle());
    }

    #[tokio::test]
    async fn events_since_the_mark_are_not_missed() {
        let (sender, events) = watch::channel(SubsystemEvents::default());
        let mut uevents = Uevents { events, ..Uevents::default() };
        let tty = BTreeSet::from(["tty".to_owned()]);
        let mark = uevents.mark();
        Batch { subsystems: tty.clone(), lost: false }.publish(&sender);
        uevents.after(mark, &tty).await;
        let mark = uevents.mark();
        Batch { subsystems: BTreeSet::from(["usb".to_owned()]), lost: false }.publish(&sender);
        assert!(timeout(Duration::from_millis(50), uevents.after(mark, &tty)).await.is_err(), "another subsystem");
        Batch { subsystems: BTreeSet::new(), lost: true }.publish(&sender);
        uevents.after(mark, &tty).await;
    }

    /// The socket is never empty in a flood: nobody else on this thread would run, or look at other sockets.
    #[tokio::test]
    async fn flood_lets_others_run_after_each_batch() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (flood, socket) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        set_socket_send_buffer_size(&flood, 8 << 20).unwrap();
        let fill = || (0..).take_while(|_| send(&flood, b"x", SendFlags::empty()).is_ok()).count();
        assert!(fill() > socket::BATCH);
        let (sender, _events) = watch::channel(SubsystemEvents::default());
        let udevd = Udevd::beside(Path::new("/nonexistent"));
        let mut listening = pin!(listen(Socket::of(socket), &udevd, &sender));
        let read = loop {
            assert!(poll!(&mut listening).is_pending());
            match fill() {
                0 => yield_now().await,
                read => break read,
            }
        };
        assert!(read <= socket::BATCH, "{read}");
    }

    #[tokio::test]
    async fn no_event_is_delivered_after_the_end() {
        let mut uevents = Uevents::default();
        let all = BTreeSet::from(["*".to_owned()]);
        assert!(timeout(Duration::from_millis(50), uevents.after(Mark::default(), &all)).await.is_err());
    }
}
