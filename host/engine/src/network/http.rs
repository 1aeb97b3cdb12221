//! `wasi:http`, outgoing: a request goes to a granted address or nowhere.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use akri_model::grant::{HttpDestinations, Tls};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, Uri, header};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, spawn};
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::p2::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use super::body::{self, BODY};
use super::destination::{Destination, Host, dial, granted};
use super::names::{NameError, Names};
use super::request_permits::{RequestPermit, RequestPermits};
use super::sockets::grant_for;
use super::tls::Trust;
use crate::deadline::Deadline;
use crate::log::{Place, RoundLog};
use crate::rates::Rates;
use crate::tape::{Answering, Tape};

/// For a connection, TLS included, unless the request says otherwise.
const CONNECT: Duration = Duration::from_secs(5);
/// For a response to begin.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// For it to go on.
const BETWEEN_BYTES: Duration = Duration::from_secs(10);
/// Bytes of a response's head.
const HEAD: usize = 16 << 10;
/// Bytes of a request's body that wait in the host, twice: a thousand requests may.
const CHUNK: usize = 16 << 10;

/// The requests of one round.
pub(crate) struct Http {
    pub(crate) client: Arc<Client>,
    pub(crate) tape: Option<Arc<dyn Tape>>,
}

/// Sends them.
pub(crate) struct Client {
    pub(crate) grants: Vec<HttpDestinations>,
    pub(crate) names: Arc<Names>,
    pub(crate) request_permits: RequestPermits,
    pub(crate) trust: Arc<Trust>,
    pub(crate) log: Arc<RoundLog>,
    pub(crate) rates: Rates,
    pub(crate) deadline: Deadline,
}

/// Ends with the connection of a response.
pub type Finished = Box<dyn Future<Output = Result<(), Error>> + Send>;
/// A response, or the reason why there is none.
pub type Answered = Result<(Response<WasiBody>, Finished), Error>;

impl WasiHttpHooks for Http {
    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _sent: Finished,
    ) -> Box<dyn Future<Output = Answered> + Send> {
        let client = self.client.clone();
        match self.tape.clone() {
            None => Box::new(client.send(request, options)),
            Some(tape) => {
                let send = move |request| -> Answering { Box::pin(client.send(request, options)) };
                Box::new(tape.send_request(request, Box::new(send)))
            }
        }
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK
    }

    // By default each of these is a warning in the agent's log, as often as a guest likes.

    fn p2_error_from_hyper(&mut self, _: &hyper::Error) -> ErrorCode {
        ErrorCode::HttpProtocolError
    }

    fn p2_error_from_connect(&mut self, _: &std::io::Error) -> ErrorCode {
        ErrorCode::ConnectionRefused
    }

    fn p2_error_from_tls(&mut self, _: &std::io::Error) -> ErrorCode {
        ErrorCode::TlsProtocolError
    }
}

impl Client {
    async fn send(self: Arc<Self>, request: Request<WasiBody>, options: Option<RequestOptions>) -> Answered {
        if self.grants.is_empty() {
            self.log.not_granted("http", &"an HTTP request");
            return Err(Error::HttpRequestDenied);
        }
        let options = options.unwrap_or_default();
        // What it would open is no request any more, and nothing checks what it carries.
        if request.method() == Method::CONNECT {
            return Err(Error::HttpRequestMethodInvalid);
        }
        let to = Destination::of(request.uri())?;
        let addresses = self.resolve(&to).await?;
        let granted = self.granted(&to, &addresses)?;
        let connect = self.connect(&to, &granted, options.connect_timeout.unwrap_or(CONNECT));
        let Connected { mut sender, driver } = connect.await?;
        let answer = sender.send_request(prepared(request)?);
        let answer = timeout(self.within(options.first_byte_timeout.unwrap_or(FIRST_BYTE)), answer).await;
        let answer = answer.map_err(|_| Error::HttpResponseTimeout)?.map_err(body::why)?;
        let pause = options.between_bytes_timeout.unwrap_or(BETWEEN_BYTES);
        let answer = bounded(answer, pause, self.deadline.last_wait())?;
        let finished = async move {
            driver.await;
            Ok(())
        };
        Ok((answer, Box::new(finished)))
    }

    async fn resolve(&self, to: &Destination) -> Result<Vec<IpAddr>, Error> {
        let name = match &to.host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        self.names.addresses(name).await.map_err(|error| match error {
            NameError::NotGranted(_) => {
                self.names.refuse(&error, &self.log);
                Error::HttpRequestDenied
            }
            NameError::Invalid(_) => Error::HttpRequestUriInvalid,
            NameError::TooMany => Error::InternalError(Some(error.to_string())),
            NameError::Failed(_) => Error::DnsTimeout,
            NameError::Unresolved(why) => Error::DnsError { rcode: Some(why), info_code: None },
        })
    }

    /// Only what is checked here is dialled: a name that means another address a moment later means nothing.
    fn granted(&self, to: &Destination, addresses: &[IpAddr]) -> Result<Vec<(SocketAddr, &Tls)>, Error> {
        let granted = granted(addresses, to.port, &self.grants);
        if granted.is_empty() {
            let (wanted, port) = (grant_for(addresses, to.port), to.port);
            let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let what = format!("http to {}, port {port},", shown.join(", "));
            let place = match &to.host {
                Host::Name(name) => Place(name.clone(), Some(port)),
                Host::Address(address) => Place::from(SocketAddr::new(*address, port)),
            };
            self.log.unreachable("http", &self.grants, place, &what, &wanted);
            return Err(match to.host {
                Host::Address(_) => Error::HttpRequestDenied,
                Host::Name(_) => Error::DestinationIpProhibited,
            });
        }
        Ok(granted)
    }

    /// So long, or until waiting has to end.
    fn within(&self, wanted: Duration) -> Duration {
        wanted.min(self.deadline.remaining_wait())
    }

    /// Connects to the first of the addresses that answers, with TLS if it is wanted; each has its share of the time, and a turn of
    /// its own.
    async fn connect(
        &self,
        to: &Destination,
        granted: &[(SocketAddr, &Tls)],
        within: Duration,
    ) -> Result<Connected, Error> {
        let share = within / u32::try_from(granted.len()).unwrap_or(u32::MAX).max(1);
        let mut last = Error::DestinationIpProhibited;
        for (address, tls) in granted {
            let permit = timeout(self.within(Duration::MAX), self.request_permits.acquire(address.ip())).await;
            let permit = permit.map_err(|_| Error::ConnectionTimeout)?.map_err(|_| Error::ConnectionLimitReached)?;
            self.rates.connection().await;
            match dial(*address, self.within(share)).await {
                Ok(stream) => {
                    let open = async {
                        if !to.secure {
                            return Connected::over(stream, permit).await;
                        }
                        let stream = self.trust.secure(stream, to.name(), address.ip(), tls).await?;
                        Connected::over(stream, permit).await
                    };
                    let opened = timeout(self.within(within), open).await;
                    return opened.map_err(|_| Error::ConnectionTimeout)?;
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A connection for one request.
struct Connected {
    sender: http1::SendRequest<WasiBody>,
    /// Ends with the request, or with the guest's interest in it.
    driver: AbortOnDropJoinHandle<()>,
}

impl Connected {
    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        permit: RequestPermit,
    ) -> Result<Self, Error> {
        let (sender, connection) =
            http1::Builder::new().max_buf_size(HEAD).handshake(TokioIo::new(stream)).await.map_err(body::why)?;
        let driver = spawn(async move {
            let _permit = permit;
            // What goes wrong is told by the response and its body.
            let _ = connection.await;
        });
        Ok(Self { sender, driver })
    }
}

/// Prepares a request for a server: without scheme and host, which are for proxies, and the only one on its connection.
fn prepared(request: Request<WasiBody>) -> Result<Request<WasiBody>, Error> {
    let (mut parts, body) = request.into_parts();
    let root = || PathAndQuery::from_static("/");
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(root);
    parts.uri = Uri::builder().path_and_query(path).build().map_err(|_| Error::HttpRequestUriInvalid)?;
    parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(Request::from_parts(parts, body::sent(body)))
}

fn bounded(answer: Response<Incoming>, pause: Duration, last: Instant) -> Result<Response<WasiBody>, Error> {
    let announced = answer.body().size_hint().lower();
    if announced > BODY as u64 {
        return Err(Error::HttpResponseBodySize(Some(announced)));
    }
    Ok(answer.map(|incoming| body::received(incoming, pause, last)))
}
