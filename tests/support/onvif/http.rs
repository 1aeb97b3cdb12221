//! The web server of all cameras, which identifies the camera by the local address of a connection.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair, SanType};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_stream::StreamExt as _;

use super::camera::{Camera, Lock, Manner};
use super::credentials::{CHALLENGE, element, has_digest, has_token};
use super::{CameraFarmState, PORT, TLS_PORT, messages};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Creates a self-signed certificate for all cameras.
pub(super) fn certificate(cameras: &BTreeMap<IpAddr, Camera>) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::default();
    params.subject_alt_names = cameras.keys().copied().map(SanType::IpAddress).collect();
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap(), key)
}

pub(super) async fn serve(state: Arc<CameraFarmState>, certificate: &rcgen::Certificate, key: &KeyPair) {
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let tls = ServerConfig::builder_with_provider(Arc::new(tokio_rustls::rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key.into())
        .unwrap();
    for (port, tls) in [(PORT, None), (TLS_PORT, Some(TlsAcceptor::from(Arc::new(tls))))] {
        let listener = listener(port);
        tokio::spawn(accept(listener, tls, Arc::clone(&state)));
    }
}

fn listener(port: u16) -> TcpListener {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind((Ipv4Addr::UNSPECIFIED, port).into()).unwrap();
    socket.listen(4096).unwrap()
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<CameraFarmState>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(connection(stream, tls.clone(), Arc::clone(&state)));
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, state: Arc<CameraFarmState>) {
    let Ok(address) = stream.local_addr() else { return };
    if state.camera(address.ip()).is_none() {
        return; // a camera that is off takes no connections
    }
    let now = state.connections.fetch_add(1, Ordering::Relaxed) + 1;
    state.most_connections.fetch_max(now, Ordering::Relaxed);
    match tls {
        None => converse(stream, address.ip(), &state).await,
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                converse(stream, address.ip(), &state).await;
            }
        }
    }
    state.connections.fetch_sub(1, Ordering::Relaxed);
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, address: IpAddr, state: &CameraFarmState) {
    let service = service_fn(async |request| Ok::<_, Infallible>(respond(request, address, state).await));
    // Clients may close connections at any time.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(request: Request<Incoming>, address: IpAddr, state: &CameraFarmState) -> Response<Body> {
    let Some(camera) = state.camera(address) else { return response(StatusCode::NOT_FOUND, full("")) };
    let path = request.uri().path().to_owned();
    let authorization = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    // Cameras do not support chunked requests.
    let is_chunked = !request.headers().contains_key("content-length");
    let body = Limited::new(request.into_body(), 65_536).collect().await;
    let message = body.ok().and_then(|body| String::from_utf8(body.to_bytes().into()).ok()).filter(|_| !is_chunked);
    let Some((message, name)) = message.as_deref().and_then(|message| Some((message, request_of(message)?))) else {
        return response(StatusCode::BAD_REQUEST, full(messages::fault("Sender", "WellFormed", "no SOAP message")));
    };
    state.requests.fetch_add(1, Ordering::Relaxed);
    state.requests_by_camera.lock().unwrap().entry(address).or_default().push(name.to_owned());
    let answer = match refusal(&camera, name, message, authorization.as_deref(), &path) {
        Some(refusal) => return refusal,
        None => messages::answer(&camera, name, element(message, "ProfileToken").unwrap_or_default()),
    };
    let (status, answer) = match answer {
        Some(answer) => (StatusCode::OK, answer),
        None => {
            (StatusCode::INTERNAL_SERVER_ERROR, messages::fault("Receiver", "ActionNotSupported", "no such action"))
        }
    };
    match camera.service {
        Manner::Mute => std::future::pending().await,
        Manner::Trickle => response(status, trickle(answer)),
        Manner::Bytes(bytes) => response(status, full(bytes)),
        Manner::Good | Manner::Bare => response(status, full(answer)),
    }
}

/// Returns the response to a client without the password. The time is available to everyone.
fn refusal(
    camera: &Camera,
    name: &str,
    message: &str,
    authorization: Option<&str>,
    path: &str,
) -> Option<Response<Body>> {
    let is_welcome = name == "GetSystemDateAndTime"
        || match camera.lock {
            Lock::Open => true,
            Lock::Token(password) => has_token(message, password, messages::now(camera)).unwrap_or_default(),
            Lock::HttpDigest(password) => {
                let has_digest = |authorization| has_digest(authorization, password, path);
                authorization.and_then(has_digest).unwrap_or_default()
            }
        };
    if is_welcome {
        return None;
    }
    let fault = full(messages::fault("Sender", "NotAuthorized", "sender not authorized"));
    let is_http = matches!(camera.lock, Lock::HttpDigest(_));
    let mut refusal = response(if is_http { StatusCode::UNAUTHORIZED } else { StatusCode::BAD_REQUEST }, fault);
    if is_http {
        refusal.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE.parse().unwrap());
    }
    Some(refusal)
}

/// Returns the name of the element in the body.
fn request_of(message: &str) -> Option<&str> {
    let body = message.split_once("Body>")?.1.trim_start().strip_prefix('<')?;
    body.split(|c: char| !c.is_alphanumeric()).next()
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, "application/soap+xml; charset=utf-8");
    response.body(body).unwrap()
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

fn trickle(text: String) -> Body {
    let slowly = tokio_stream::iter(text.into_bytes()).then(async |byte| {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(Frame::data(Bytes::from(vec![byte])))
    });
    StreamBody::new(slowly).boxed_unsync()
}
