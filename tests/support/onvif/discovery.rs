//! WS-Discovery of the simulated cameras.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::CameraFarmState;
use super::camera::{Camera, Manner};
use super::credentials::element;
use super::messages;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 250);
const PORT: u16 = 3702;
/// Responses are spread over this time (WS-Discovery, APP_MAX_DELAY).
const SPREAD: Duration = Duration::from_millis(500);
/// In this many steps.
const STEPS: usize = 50;

/// An announcement of a camera.
pub(super) enum Announcement {
    Hello(IpAddr),
    Bye(IpAddr),
}

pub(super) async fn serve(state: Arc<CameraFarmState>, announced: mpsc::UnboundedReceiver<Announcement>) {
    let group = socket(SocketAddr::from((GROUP, PORT)));
    group.join_multicast_v4(GROUP, Ipv4Addr::LOCALHOST).unwrap();
    tokio::spawn(listen(group, Arc::clone(&state)));
    tokio::spawn(announce(announced, state));
}

fn socket(address: SocketAddr) -> UdpSocket {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    UdpSocket::from_std(socket.into()).unwrap()
}

async fn listen(group: UdpSocket, state: Arc<CameraFarmState>) {
    let mut buffer = vec![0; 65_536];
    let mut last = String::new();
    loop {
        let (length, from) = group.recv_from(&mut buffer).await.unwrap();
        let Ok(message) = str::from_utf8(&buffer[..length]) else { continue };
        let Some(id) = element(message, "a:MessageID").filter(|_| message.contains("discovery/Probe<")) else {
            continue;
        };
        // A repeated message is answered once.
        if last != id {
            last = id.to_owned();
            state.probes.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(answer(Arc::clone(&state), last.clone(), from));
        }
    }
}

/// Sends the responses of all cameras, each from its own address.
async fn answer(state: Arc<CameraFarmState>, id: String, to: SocketAddr) {
    let cameras: Vec<Camera> = state.lock().values().filter(|camera| camera.is_on).cloned().collect();
    for group in cameras.chunks(cameras.len().div_ceil(STEPS).max(1)) {
        for camera in group {
            let message = match &camera.discovery {
                Manner::Mute => continue,
                Manner::Bytes(bytes) => bytes.clone(),
                Manner::Bare => messages::probe_match(camera, &id, true).into_bytes(),
                Manner::Good | Manner::Trickle => messages::probe_match(camera, &id, false).into_bytes(),
            };
            let socket = socket(SocketAddr::from((camera.address(), 0)));
            if camera.hesitation.is_zero() {
                socket.send_to(&message, to).await.unwrap();
            } else {
                tokio::spawn(hesitate(camera.hesitation, socket, message, to));
            }
        }
        tokio::time::sleep(SPREAD / u32::try_from(STEPS).unwrap()).await;
    }
}

async fn hesitate(time: Duration, socket: UdpSocket, message: Vec<u8>, to: SocketAddr) {
    tokio::time::sleep(time).await;
    let _ = socket.send_to(&message, to).await; // the client may have ended
}

async fn announce(mut announced: mpsc::UnboundedReceiver<Announcement>, state: Arc<CameraFarmState>) {
    while let Some(announcement) = announced.recv().await {
        let (Announcement::Hello(address) | Announcement::Bye(address)) = announcement;
        let camera = state.lock().get(&address).cloned().unwrap();
        let message = match announcement {
            Announcement::Hello(_) => messages::hello(&camera),
            Announcement::Bye(_) => messages::bye(&camera),
        };
        socket(SocketAddr::from((address, 0))).send_to(message.as_bytes(), (GROUP, PORT)).await.unwrap();
    }
}
