//! A filter that accepts HTTP/2 peers whose `:authority` is a socket path.
//!
//! Kubelets before 1.26, grpcio and older Go clients send the path of the Unix socket they dialled, percent-encoded or
//! not, as `:authority`. RFC 9113 (8.3.1) does not allow that, and h2 resets such a stream before our code sees it.
//! Therefore [`Filter`] sits between the socket and h2: it writes `localhost` in place of the authority, which no server of ours
//! looks at. All other bytes pass unchanged.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tonic::transport::server::Connected;

use frame::{Block, CONTINUATION, HEADERS, Head, PUSH_PROMISE};

use header_block::with_valid_authority;

mod frame;
mod header_block;
#[cfg(test)]
mod tests;

/// The client connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Limit on a header block, encoded and without frame headers, in bytes. h2 itself accepts 16 KiB of headers.
const MAX_BLOCK: usize = 64 << 10;

/// Returns the error with which a connection is closed.
fn malformed(why: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The meaning of the next bytes from the peer.
#[derive(Debug, Clone, Copy)]
enum Step {
    Head,
    /// The payload of a frame that carries a piece of a header block.
    Fragment(Head),
    /// The rest of the preface, which h2 checks, or of the payload of any other frame.
    Pass(usize),
}

/// The server's end of an HTTP/2 connection, with every `:authority` made a valid one.
///
/// Reading fails with [`io::ErrorKind::InvalidData`] once the peer breaks the framing or a bound: frames of 16 KiB,
/// header blocks of 64 KiB. Writing passes through.
pub struct Filter<S> {
    inner: S,
    step: Step,
    /// Bytes read of the current step, unless the step is `Pass`.
    partial: Vec<u8>,
    /// Filtered bytes, the first `taken` of them already read by h2.
    filtered: Vec<u8>,
    taken: usize,
    open: Option<Block>,
    /// The place among all connections, held as long as this one.
    _permit: OwnedSemaphorePermit,
    /// The order to end; `None` once it can't come any more.
    order: Option<oneshot::Receiver<()>>,
}

impl<S> Filter<S> {
    /// Filters a connection from its first byte on. It holds a permit until it ends, and ends by an order. A server that shuts down
    /// gives none: it lets connections finish.
    pub(super) fn new(inner: S, permit: OwnedSemaphorePermit, order: oneshot::Receiver<()>) -> Self {
        Self {
            inner,
            step: Step::Pass(PREFACE.len()),
            partial: Vec::new(),
            filtered: Vec::new(),
            taken: 0,
            open: None,
            _permit: permit,
            order: Some(order),
        }
    }

    /// Returns whether the connection has to end, to make room for others.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(order) = &mut self.order else { return false };
        let Poll::Ready(ordered) = Pin::new(order).poll(cx) else { return false };
        self.order = None;
        ordered.is_ok()
    }

    /// Returns the number of bytes of the current step.
    fn wanted(&self) -> usize {
        match self.step {
            Step::Head => frame::HEAD,
            Step::Fragment(head) => head.length,
            Step::Pass(left) => left,
        }
    }

    /// Copies filtered bytes to h2; returns false if there are none.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let rest = self.filtered.get(self.taken..).unwrap_or_default();
        let piece = rest.get(..buf.remaining()).unwrap_or(rest);
        buf.put_slice(piece);
        self.taken += piece.len();
        let some = !piece.is_empty();
        if self.taken == self.filtered.len() {
            self.filtered = Vec::new();
            self.taken = 0;
        }
        some
    }

    /// Completes the current step and selects the next one.
    fn advance(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.partial);
        self.step = match self.step {
            Step::Head => self.begin(&bytes)?,
            Step::Fragment(head) => {
                self.collect(head, &bytes)?;
                Step::Head
            }
            Step::Pass(_) => Step::Head,
        };
        Ok(())
    }

    /// Parses a frame header.
    fn begin(&mut self, bytes: &[u8]) -> io::Result<Step> {
        let head = Head::parse(bytes)?;
        let fits = match (head.kind, &self.open) {
            (CONTINUATION, Some(block)) => block.stream == head.stream,
            (CONTINUATION, None) | (PUSH_PROMISE, _) => false,
            (_, open) => open.is_none(),
        };
        match head.kind {
            _ if !fits => Err(malformed(format!("a frame of type {} where none may be", head.kind))),
            HEADERS | CONTINUATION => Ok(Step::Fragment(head)),
            _ => {
                self.filtered.extend_from_slice(bytes);
                Ok(Step::Pass(head.length))
            }
        }
    }

    /// Adds a fragment to the open header block and forwards the block when it is complete.
    fn collect(&mut self, head: Head, payload: &[u8]) -> io::Result<()> {
        let mut block = match self.open.take() {
            None => Block::begin(head, payload)?,
            Some(mut block) => {
                block.fragment.extend_from_slice(payload);
                block
            }
        };
        if block.fragment.len() > MAX_BLOCK {
            return Err(malformed("a header block of more than 65536 bytes"));
        }
        if head.ends_headers() {
            block.fragment = with_valid_authority(&block.fragment);
            block.write(&mut self.filtered);
        } else {
            self.open = Some(block);
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> Filter<S> {
    /// Reads more of the current step; returns false at the end of the connection.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut space = [0; 256];
        let left = self.wanted().saturating_sub(self.partial.len()).min(space.len());
        let mut chunk = ReadBuf::new(space.get_mut(..left).unwrap_or_default());
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut chunk))?;
        self.partial.extend_from_slice(chunk.filled());
        Poll::Ready(Ok(!chunk.filled().is_empty()))
    }

    /// Reads payload directly into h2's buffer; returns false at the end of the connection.
    fn poll_pass(&mut self, cx: &mut Context<'_>, left: usize, buf: &mut ReadBuf<'_>) -> Poll<io::Result<bool>> {
        let mut chunk = ReadBuf::new(buf.initialize_unfilled_to(left.min(buf.remaining())));
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut chunk))?;
        let read = chunk.filled().len();
        buf.advance(read);
        self.step = Step::Pass(left.saturating_sub(read));
        Poll::Ready(Ok(read > 0))
    }

    /// Checks the end of the connection: it is valid between frames and an error within one.
    fn end(&self) -> io::Result<()> {
        let is_complete = self.partial.is_empty() && self.open.is_none();
        match self.step {
            Step::Head if is_complete => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Filter<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.poll_closed(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        while !self.deliver(buf) {
            let step = self.step;
            match step {
                Step::Pass(left) if left > 0 => {
                    let read = ready!(self.poll_pass(cx, left, buf))?;
                    return Poll::Ready(if read { Ok(()) } else { self.end() });
                }
                _ if self.partial.len() == self.wanted() => self.advance()?,
                _ if !ready!(self.poll_fill(cx))? => return Poll::Ready(self.end()),
                _ => {}
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Filter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: Connected> Connected for Filter<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}
