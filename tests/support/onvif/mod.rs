//! Thousands of simulated cameras in one thread. Each has an address, responds to WS-Discovery, implements the required
//! parts of ONVIF's device and media services, and verifies passwords. Some misbehave.

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

/// The port of the device services.
pub const PORT: u16 = 8080;
/// The port with TLS.
pub const TLS_PORT: u16 = 8443;

/// The cameras; they end on drop.
pub struct Farm {
    state: Arc<CameraFarmState>,
    announcements: mpsc::UnboundedSender<Announcement>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    certificate: String,
}

/// The shared state of all cameras.
struct CameraFarmState {
    cameras: Mutex<BTreeMap<IpAddr, Camera>>,
    /// The names of requests, by camera.
    requests_by_camera: Mutex<BTreeMap<IpAddr, Vec<String>>>,
    requests: AtomicUsize,
    probes: AtomicUsize,
    connections: AtomicUsize,
    most_connections: AtomicUsize,
}

impl Farm {
    /// Starts cameras on the loopback interface of a namespace; they respond when this returns.
    pub fn start(namespace: &Namespace, cameras: impl IntoIterator<Item = Camera>) -> Self {
        let state = Arc::new(CameraFarmState {
            cameras: Mutex::new(cameras.into_iter().map(|camera| (camera.address(), camera)).collect()),
            requests_by_camera: Mutex::default(),
            requests: AtomicUsize::default(),
            probes: AtomicUsize::default(),
            connections: AtomicUsize::default(),
            most_connections: AtomicUsize::default(),
        });
        let (certificate, key) = http::certificate(&state.lock());
        let pem = certificate.pem();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let (announcements, announced) = mpsc::unbounded_channel();
        let shared = Arc::clone(&state);
        let thread = namespace.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                http::serve(Arc::clone(&shared), &certificate, &key).await;
                discovery::serve(shared, announced).await;
                ready.send(()).unwrap();
                let _ = ended.await; // the receiver may have ended
            });
        });
        is_ready.recv().unwrap();
        Self { state, announcements, end: Some(end), thread: Some(thread), certificate: pem }
    }

    /// Changes a camera.
    pub fn change(&self, number: u32, change: impl FnOnce(&mut Camera)) {
        change(self.state.lock().get_mut(&camera::address(number)).unwrap());
    }

    /// Sends a camera's Hello.
    pub fn hello(&self, number: u32) {
        self.announcements.send(Announcement::Hello(camera::address(number))).unwrap();
    }

    /// Sends a camera's Bye.
    pub fn bye(&self, number: u32) {
        self.announcements.send(Announcement::Bye(camera::address(number))).unwrap();
    }

    /// Returns the names of a camera's requests since the last call.
    pub fn take_requests(&self, number: u32) -> Vec<String> {
        self.state.requests_by_camera.lock().unwrap().remove(&camera::address(number)).unwrap_or_default()
    }

    /// Returns the number of requests to all cameras.
    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// Returns the number of different probes.
    pub fn probes(&self) -> usize {
        self.state.probes.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of concurrent connections.
    pub fn most_connections(&self) -> usize {
        self.state.most_connections.load(Ordering::Relaxed)
    }

    /// Returns the TLS certificate of all cameras, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }
}

impl CameraFarmState {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Camera>> {
        self.cameras.lock().unwrap()
    }

    /// Returns the camera with this address, if it is on.
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
