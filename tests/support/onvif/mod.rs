//! Cameras by the thousand, in one thread: each has an address of its own, answers WS-Discovery, has the parts of
//! ONVIF's device and media services that a client needs to find its way, and really checks passwords. Some misbehave.

pub mod camera;
mod credentials;
mod discovery;
mod http;
mod messages;
pub mod peers;
pub mod place;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use self::camera::Camera;
use self::discovery::Announcement;
use super::namespace::Namespace;

/// The port of every camera's device service.
pub const PORT: u16 = 8080;
/// Likewise with TLS.
pub const TLS_PORT: u16 = 8443;

/// The cameras. They go when this is dropped.
pub struct Farm {
    site: Arc<Site>,
    announcements: mpsc::UnboundedSender<Announcement>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    certificate: String,
}

/// What all parts of the farm see.
struct Site {
    cameras: Mutex<BTreeMap<IpAddr, Camera>>,
    /// The names of the requests each camera got.
    asked: Mutex<BTreeMap<IpAddr, Vec<String>>>,
    requests: AtomicUsize,
    probes: AtomicUsize,
    connections: AtomicUsize,
    most_connections: AtomicUsize,
}

impl Farm {
    /// Cameras on the loopback interface of a namespace. They answer as soon as this returns.
    pub fn start(namespace: &Namespace, cameras: impl IntoIterator<Item = Camera>) -> Self {
        let site = Arc::new(Site {
            cameras: Mutex::new(cameras.into_iter().map(|camera| (camera.address(), camera)).collect()),
            asked: Mutex::default(),
            requests: AtomicUsize::default(),
            probes: AtomicUsize::default(),
            connections: AtomicUsize::default(),
            most_connections: AtomicUsize::default(),
        });
        let (certificate, key) = http::certificate(&site.lock());
        let pem = certificate.pem();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let (announcements, announced) = mpsc::unbounded_channel();
        let shared = Arc::clone(&site);
        let thread = namespace.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                http::serve(Arc::clone(&shared), &certificate, &key).await;
                discovery::serve(shared, announced).await;
                ready.send(()).unwrap();
                let _ = ended.await; // whoever had the other end is gone
            });
        });
        is_ready.recv().unwrap();
        Self { site, announcements, end: Some(end), thread: Some(thread), certificate: pem }
    }

    /// Changes what a camera is like.
    pub fn change(&self, number: u32, change: impl FnOnce(&mut Camera)) {
        change(self.site.lock().get_mut(&camera::address(number)).unwrap());
    }

    /// A camera says that it has come, to everyone.
    pub fn hello(&self, number: u32) {
        self.announcements.send(Announcement::Hello(camera::address(number))).unwrap();
    }

    /// A camera says that it goes.
    pub fn bye(&self, number: u32) {
        self.announcements.send(Announcement::Bye(camera::address(number))).unwrap();
    }

    /// The names of the requests a camera got since the last time this was called.
    pub fn asked(&self, number: u32) -> Vec<String> {
        self.site.asked.lock().unwrap().remove(&camera::address(number)).unwrap_or_default()
    }

    /// How many requests all cameras got.
    pub fn requests(&self) -> usize {
        self.site.requests.load(Ordering::Relaxed)
    }

    /// How many different probes there were.
    pub fn probes(&self) -> usize {
        self.site.probes.load(Ordering::Relaxed)
    }

    /// How many connections there were at once, at most.
    pub fn most_connections(&self) -> usize {
        self.site.most_connections.load(Ordering::Relaxed)
    }

    /// The certificate of all cameras' TLS, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }
}

impl Site {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Camera>> {
        self.cameras.lock().unwrap()
    }

    /// The camera that has this address and is on.
    fn camera(&self, address: IpAddr) -> Option<Camera> {
        self.lock().get(&address).filter(|camera| camera.is_on).cloned()
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // what went wrong in it is on standard error
        }
    }
}
