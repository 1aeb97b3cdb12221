//! A proxy before the API server that makes it slow: requests land late, replies come late or never.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::Kubeconfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The treatment of requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    Clear,
    /// Requests are held back.
    LateRequests,
    /// Replies are held back.
    LateReplies,
    /// Requests arrive; their connections end before the replies.
    LostReplies,
}

/// The course of a brownout: calm for a moment, in which some requests succeed, then 3 to 8 s of trouble.
const FORECAST: &[(Weather, u64)] = &[
    (Weather::LateReplies, 3),
    (Weather::Clear, 2),
    (Weather::LostReplies, 4),
    (Weather::Clear, 1),
    (Weather::LateRequests, 8),
    (Weather::Clear, 2),
    (Weather::LateReplies, 6),
    (Weather::Clear, 1),
    (Weather::LateRequests, 3),
    (Weather::LostReplies, 3),
    (Weather::Clear, 2),
];

/// The proxy. It ends when it is dropped.
pub struct Brownout {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    accepting: JoinHandle<()>,
}

impl Brownout {
    /// Starts a proxy before the API server of a kubeconfig, in clear weather.
    pub async fn before(kubeconfig: &Path) -> Self {
        let server = server(&Kubeconfig::read_from(kubeconfig).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (weather, observed) = watch::channel(Weather::Clear);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connect(client, server.clone(), observed.clone()));
            }
        });
        Self { address, weather, accepting }
    }

    /// Writes a copy of a kubeconfig that leads through the proxy.
    pub fn kubeconfig(&self, from: &Path, to: PathBuf) -> PathBuf {
        let config = Kubeconfig::read_from(from).unwrap();
        let text = fs::read_to_string(from).unwrap();
        fs::write(&to, text.replace(&server(&config), &self.address.to_string())).unwrap();
        to
    }

    /// Lets the API server be slow for this long, and well again.
    pub async fn last(&self, duration: Duration) {
        let end = Instant::now() + duration;
        for (weather, seconds) in FORECAST.iter().cycle() {
            self.weather.send_replace(*weather);
            sleep(Duration::from_secs(*seconds)).await;
            if Instant::now() >= end {
                break;
            }
        }
        self.weather.send_replace(Weather::Clear);
    }
}

impl Drop for Brownout {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Host and port.
fn server(config: &Kubeconfig) -> String {
    let server = config.clusters[0].cluster.as_ref().unwrap().server.clone().unwrap();
    server.strip_prefix("https://").unwrap().to_owned()
}

async fn connect(client: TcpStream, server: String, weather: watch::Receiver<Weather>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        _ = pass(from_client, to_server, weather.clone(), Weather::LateRequests) => {}
        _ = pass(from_server, to_client, weather, Weather::LateReplies) => {}
    }
}

/// Passes bytes on, but not in `late` weather.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    late: Weather,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer).await?;
        let now = *weather.wait_for(|now| *now != late).await.map_err(io::Error::other)?;
        if count == 0 || (now == Weather::LostReplies && late == Weather::LateReplies) {
            return Ok(());
        }
        to.write_all(&buffer[..count]).await?;
    }
}
