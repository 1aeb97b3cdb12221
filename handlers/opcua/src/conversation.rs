//! A request to one server as a state machine over bytes: Hello, OpenSecureChannel with SecurityPolicy None, the
//! request, and CloseSecureChannel (OPC 10000-6 §6.7 and §7.1). It does no I/O and has no clock, so that it runs the
//! same in the sandbox, in tests and in a fuzzer.

use std::time::SystemTime;

use crate::binary::{self, Reader, Writer};
use crate::chunk::{self, Chunk, Kind, Place};
use crate::message::{self, Question, Token};
use crate::network::shown;
use crate::status::{Refusal, Status};

/// Maximum number of chunks per response. 1 MiB takes 128 of the smallest permitted buffer.
const MAX_CHUNKS: u32 = 256;

/// The smallest permitted buffer of a server (OPC 10000-6 §7.1.2.3).
const SMALLEST_BUFFER: usize = 8192;

/// The policy of a channel without security.
const POLICY_NONE: &str = "http://opcfoundation.org/UA/SecurityPolicy#None";

/// Request ids of the channel's messages.
const OPEN_REQUEST: u32 = 1;
const QUESTION_REQUEST: u32 = 2;
const CLOSE_REQUEST: u32 = 3;

/// The reason for a failed conversation. Each is a sentence about the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The received bytes are not a chunk.
    #[error(transparent)]
    Chunk(#[from] chunk::Error),
    /// The received message is not the response.
    #[error(transparent)]
    Message(#[from] message::Error),
    /// The server refused the connection or aborted the response.
    #[error("it answers {0}")]
    Refused(Refusal),
    /// An unexpected chunk.
    #[error("it sent what it was not asked for")]
    UnexpectedChunk,
    /// The channel has another security policy.
    #[error("it opened a channel with security policy '{0}'")]
    Policy(String),
    /// The chunk belongs to another channel, token or request.
    #[error("it sent a chunk for another {0}")]
    Foreign(&'static str),
    /// The response exceeds a limit.
    #[error("its response has more than {0}")]
    TooLong(String),
    /// The server's buffer is too small for the request.
    #[error("it accepts messages of {0} bytes only, fewer than the specification asks for")]
    SmallBuffer(u32),
}

impl From<binary::Error> for Error {
    fn from(error: binary::Error) -> Self {
        message::Error::from(error).into()
    }
}

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Continue reading.
    Read,
    /// Send these bytes, then continue reading.
    Send(Vec<u8>),
    /// Send the farewell, if possible without waiting, and close.
    Done {
        /// The complete response, for the functions of [`message`].
        response: Vec<u8>,
        /// CloseSecureChannel.
        farewell: Vec<u8>,
    },
}

/// A conversation in progress.
#[derive(Debug, Clone)]
pub struct Conversation {
    question: Question,
    url: String,
    now: SystemTime,
    state: State,
    /// Received bytes of an incomplete chunk.
    inbox: Vec<u8>,
    /// The response so far.
    response: Vec<u8>,
    chunks: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Hello,
    Opening,
    Asked(Token),
}

impl Conversation {
    /// Starts a conversation; returns the first bytes to send.
    pub fn begin(question: Question, url: String, now: SystemTime) -> (Self, Vec<u8>) {
        let mut hello = Writer::default();
        hello.u32(0); // protocol version
        hello.u32(chunk::RECEIVE_BUFFER).u32(chunk::RECEIVE_BUFFER);
        hello.u32(question.max_response()).u32(MAX_CHUNKS).string(&url);
        let (inbox, response) = (Vec::new(), Vec::new());
        let conversation = Self { question, url, now, state: State::Hello, inbox, response, chunks: 0 };
        (conversation, chunk::write(*b"HEL", &hello.into_bytes()))
    }

    /// Processes received bytes, in any pieces.
    ///
    /// # Errors
    /// If the server violates the protocol or a limit, or refuses. The conversation is over.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Step, Error> {
        self.inbox.extend_from_slice(bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = inbox.as_slice();
        let mut step = Step::Read;
        while step == Step::Read
            && let Some((chunk, length)) = chunk::next(rest)?
        {
            step = self.chunk(chunk)?;
            rest = rest.get(length..).unwrap_or_default();
        }
        if step != Step::Read && !rest.is_empty() {
            return Err(Error::UnexpectedChunk); // a server speaks when it is spoken to
        }
        self.inbox = rest.to_vec();
        Ok(step)
    }

    fn chunk(&mut self, chunk: Chunk<'_>) -> Result<Step, Error> {
        match (self.state, chunk.kind) {
            (_, Kind::Error) => Err(refusal(chunk.body)),
            (State::Hello, Kind::Acknowledge) => self.acknowledged(chunk.body),
            (State::Opening, Kind::Open) if chunk.place == Place::Final => self.opened(chunk.body),
            (State::Asked(token), Kind::Message) => self.answered(token, chunk),
            _ => Err(Error::UnexpectedChunk),
        }
    }

    /// Handles Acknowledge and opens the channel. Of its limits only that on our chunks matters, since requests are
    /// short.
    fn acknowledged(&mut self, body: &[u8]) -> Result<Step, Error> {
        let mut reader = Reader::new(body);
        let (_version, receive_buffer) = (reader.u32()?, reader.u32()?);
        if usize::try_from(receive_buffer).is_ok_and(|size| size < SMALLEST_BUFFER) {
            return Err(Error::SmallBuffer(receive_buffer));
        }
        let mut open = Writer::default();
        open.u32(0); // the channel has no number yet
        open.string(POLICY_NONE).null().null(); // no certificates
        open.u32(1).u32(OPEN_REQUEST).raw(&message::open_secure_channel(self.now));
        self.state = State::Opening;
        Ok(Step::Send(chunk::write(*b"OPN", &open.into_bytes())))
    }

    /// Handles the opened channel and sends the request.
    fn opened(&mut self, body: &[u8]) -> Result<Step, Error> {
        let token = message::read_token(opening(body)?)?;
        self.state = State::Asked(token);
        let request = self.question.request(&self.url, self.now);
        Ok(Step::Send(secured(*b"MSG", token, QUESTION_REQUEST, &request)))
    }

    /// Handles a chunk of the response. Sequence numbers are ignored: without security they add nothing to TCP.
    fn answered(&mut self, token: Token, chunk: Chunk<'_>) -> Result<Step, Error> {
        let body = addressed(chunk.body, token)?;
        if chunk.place == Place::Abort {
            return Err(refusal(body));
        }
        self.append(body)?;
        if chunk.place == Place::Intermediate {
            return Ok(Step::Read);
        }
        let farewell = secured(*b"CLO", token, CLOSE_REQUEST, &message::close_secure_channel(self.now));
        Ok(Step::Done { response: std::mem::take(&mut self.response), farewell })
    }

    fn append(&mut self, body: &[u8]) -> Result<(), Error> {
        let most = self.question.max_response();
        self.chunks += 1;
        if self.chunks > MAX_CHUNKS {
            return Err(Error::TooLong(format!("{MAX_CHUNKS} chunks")));
        }
        let (length, most_bytes) = (self.response.len(), most as usize);
        let needed = length.saturating_add(body.len());
        if needed > most_bytes {
            return Err(Error::TooLong(format!("{most} bytes")));
        }
        if needed > self.response.capacity() {
            // By default a vector could allocate twice the limit.
            self.response.reserve_exact(needed.max(length.saturating_mul(2)).min(most_bytes) - length);
        }
        self.response.extend_from_slice(body);
        Ok(())
    }
}

/// Builds a chunk within a channel (OPC 10000-6 §6.7.2). Sequence numbers equal request ids.
fn secured(kind: [u8; 3], token: Token, request: u32, body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u32(token.channel).u32(token.token).u32(request).u32(request).raw(body);
    chunk::write(kind, &writer.into_bytes())
}

/// Returns the message in a chunk that opens a channel.
fn opening(body: &[u8]) -> Result<&[u8], Error> {
    let mut reader = Reader::new(body);
    reader.u32()?; // the channel id, which the message repeats
    let policy = reader.string()?;
    if policy != POLICY_NONE {
        return Err(Error::Policy(shown(&policy)));
    }
    reader.byte_string()?; // the server's certificate, which proves nothing here
    reader.byte_string()?; // the thumbprint of ours, which we don't have
    belongs(&mut reader, OPEN_REQUEST)?;
    Ok(reader.rest())
}

/// Returns the content of a chunk of the response.
fn addressed(body: &[u8], token: Token) -> Result<&[u8], Error> {
    let mut reader = Reader::new(body);
    if reader.u32()? != token.channel {
        return Err(Error::Foreign("channel"));
    }
    if reader.u32()? != token.token {
        return Err(Error::Foreign("token"));
    }
    belongs(&mut reader, QUESTION_REQUEST)?;
    Ok(reader.rest())
}

/// Checks the sequence header.
fn belongs(reader: &mut Reader<'_>, request: u32) -> Result<(), Error> {
    reader.u32()?; // sequence number
    if reader.u32()? != request {
        return Err(Error::Foreign("request"));
    }
    Ok(())
}

/// Parses an error message or the body of an abort chunk (OPC 10000-6 §7.1.2.5 and §6.7.3).
fn refusal(body: &[u8]) -> Error {
    let mut reader = Reader::new(body);
    let read = reader.u32().and_then(|status| Ok((Status(status), reader.string()?)));
    match read {
        Ok((status, reason)) => Error::Refused(Refusal { status, reason: shown(&reason) }),
        Err(error) => error.into(),
    }
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
