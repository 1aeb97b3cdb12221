//! Connections from a kubelet to a plugin: with `localhost` as `:authority`, or the socket path as before 1.26.

use std::io;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use loona_hpack::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, duplex};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::Authority;

const TIMEOUT: Duration = Duration::from_secs(10);
const PREFACE: usize = 24;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED_OR_PRIORITY: u8 = 0x28;

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

pub(super) async fn dial(socket: &Path, authority: Authority) -> Result<Channel, Status> {
    let socket = socket.to_owned();
    let connect = service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = UnixStream::connect(&socket).await?;
            let connection: Box<dyn Io> = match authority {
                Authority::Localhost => Box::new(stream),
                Authority::Path => Box::new(rename(stream, socket.to_string_lossy().replace('/', "%2F"))),
            };
            Ok::<_, io::Error>(TokioIo::new(connection))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    let dialled = tokio::time::timeout(TIMEOUT, endpoint.connect_with_connector(connect)).await;
    dialled
        .map_err(|_| Status::unknown("failed to dial device plugin: timeout"))?
        .map_err(|error| Status::unknown(format!("failed to dial device plugin: {error}")))
}

/// Rewrites `:authority` on a connection, since no HTTP client sends the old form.
fn rename(stream: UnixStream, authority: String) -> DuplexStream {
    let (near, far) = duplex(64 << 10);
    let (client, mut answers) = tokio::io::split(far);
    let (mut plugin, requests) = stream.into_split();
    tokio::spawn(async move { rename_requests(client, requests, authority).await });
    tokio::spawn(async move {
        let _ = tokio::io::copy(&mut plugin, &mut answers).await;
        answers.shutdown().await
    });
    near
}

async fn rename_requests(
    mut from: ReadHalf<DuplexStream>,
    mut to: OwnedWriteHalf,
    authority: String,
) -> io::Result<()> {
    let (mut decoder, mut encoder) = (Decoder::new(), Encoder::new());
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    loop {
        let mut head = [0; 9];
        from.read_exact(&mut head).await?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        from.read_exact(&mut payload).await?;
        if head[3] == HEADERS {
            assert_eq!(head[4] & (END_HEADERS | PADDED_OR_PRIORITY), END_HEADERS, "as our client sends them");
            payload = renamed(&mut decoder, &mut encoder, &payload, &authority);
            head[..3].copy_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        }
        to.write_all(&head).await?;
        to.write_all(&payload).await?;
    }
}

fn renamed(decoder: &mut Decoder<'_>, encoder: &mut Encoder<'_>, block: &[u8], authority: &str) -> Vec<u8> {
    let mut headers = decoder.decode(block).unwrap();
    let mut named = headers.iter_mut().filter(|(name, _)| name == b":authority");
    named.next().expect("a request has an authority").1 = authority.into();
    encoder.encode(headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice())))
}
