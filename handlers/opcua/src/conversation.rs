//! One question to one server, as bytes in and bytes out: Hello, OpenSecureChannel with SecurityPolicy None, the
//! request, and CloseSecureChannel (OPC 10000-6 §6.7 and §7.1). It does no I/O and knows no time, so that it runs the
//! same in the sandbox, in tests and under a fuzzer.

use std::time::SystemTime;

use crate::binary::{self, Reader, Writer};
use crate::chunk::{self, Chunk, Kind, Place};
use crate::message::{self, Question, Token};
use crate::network::shown;
use crate::status::{Refusal, Status};

/// Chunks of one response. One of 1 MiB has 128 of the smallest buffer that a server may have.
const MAX_CHUNKS: u32 = 256;

/// The smallest buffer a server may have for what we send (OPC 10000-6 §7.1.2.3).
const SMALLEST_BUFFER: usize = 8192;

/// The policy of a channel without security.
const POLICY_NONE: &str = "http://opcfoundation.org/UA/SecurityPolicy#None";

/// Request ids of the channel's messages.
const OPEN_REQUEST: u32 = 1;
const QUESTION_REQUEST: u32 = 2;
const CLOSE_REQUEST: u32 = 3;

/// Why a conversation came to nothing. Each is a sentence about the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// What came is no chunk.
    #[error(transparent)]
    Chunk(#[from] chunk::Error),
    /// What came is not the response.
    #[error(transparent)]
    Message(#[from] message::Error),
    /// The server refused the connection or gave up the response.
    #[error("it answers {0}")]
    Refused(Refusal),
    /// A chunk that has no place here, or came before its time.
    #[error("it sent what it was not asked for")]
    OutOfTurn,
    /// A channel with another security policy than the one asked for.
    #[error("it opened a channel with security policy '{0}'")]
    Policy(String),
    /// The chunk belongs to another channel, token or request.
    #[error("it sent a chunk for another {0}")]
    Foreign(&'static str),
    /// More than we said we would read.
    #[error("its response has more than {0}")]
    TooLong(String),
    /// It can't take what we have to send.
    #[error("it accepts messages of {0} bytes only, fewer than the specification asks for")]
    SmallBuffer(u32),
}

impl From<binary::Error> for Error {
    fn from(error: binary::Error) -> Self {
        message::Error::from(error).into()
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read on.
    Read,
    /// Send this, then read on.
    Send(Vec<u8>),
    /// Send the farewell, if that is possible without waiting, and close.
    Done {
        /// The whole response, to be read by the functions of [`message`].
        response: Vec<u8>,
        /// CloseSecureChannel.
        farewell: Vec<u8>,
    },
}

/// A conversation that is under way.
#[derive(Debug, Clone)]
pub struct Conversation {
    question: Question,
    url: String,
    now: SystemTime,
    stage: Stage,
    /// What came and is no whole chunk yet.
    inbox: Vec<u8>,
    /// The response so far.
    response: Vec<u8>,
    chunks: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Hello,
    Opening,
    Asked(Token),
}

impl Conversation {
    /// A conversation and the bytes to begin it with.
    pub fn begin(question: Question, url: String, now: SystemTime) -> (Self, Vec<u8>) {
        let mut hello = Writer::default();
        hello.u32(0); // protocol version
        hello.u32(chunk::RECEIVE_BUFFER).u32(chunk::RECEIVE_BUFFER);
        hello.u32(question.max_response()).u32(MAX_CHUNKS).string(&url);
        let (inbox, response) = (Vec::new(), Vec::new());
        let conversation = Self { question, url, now, stage: Stage::Hello, inbox, response, chunks: 0 };
        (conversation, chunk::write(*b"HEL", &hello.into_bytes()))
    }

    /// Takes in what came, in whatever pieces.
    ///
    /// # Errors
    /// The server does not keep to the protocol or to our bounds, or refuses; the conversation is over.
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
            return Err(Error::OutOfTurn); // a server speaks when it is spoken to
        }
        self.inbox = rest.to_vec();
        Ok(step)
    }

    fn chunk(&mut self, chunk: Chunk<'_>) -> Result<Step, Error> {
        match (self.stage, chunk.kind) {
            (_, Kind::Error) => Err(refusal(chunk.body)),
            (Stage::Hello, Kind::Acknowledge) => self.acknowledged(chunk.body),
            (Stage::Opening, Kind::Open) if chunk.place == Place::Final => self.opened(chunk.body),
            (Stage::Asked(token), Kind::Message) => self.answered(token, chunk),
            _ => Err(Error::OutOfTurn),
        }
    }

    /// After Acknowledge the channel is opened. Of the bounds in it only that of our chunks matters: we send little.
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
        self.stage = Stage::Opening;
        Ok(Step::Send(chunk::write(*b"OPN", &open.into_bytes())))
    }

    /// With the channel's token the question is asked.
    fn opened(&mut self, body: &[u8]) -> Result<Step, Error> {
        let token = message::read_token(opening(body)?)?;
        self.stage = Stage::Asked(token);
        let request = self.question.request(&self.url, self.now);
        Ok(Step::Send(secured(*b"MSG", token, QUESTION_REQUEST, &request)))
    }

    /// Sequence numbers are not looked at: without security, they say nothing that TCP does not.
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
            // Left to itself, a vector would take up to twice the bound.
            self.response.reserve_exact(needed.max(length.saturating_mul(2)).min(most_bytes) - length);
        }
        self.response.extend_from_slice(body);
        Ok(())
    }
}

/// A chunk within a channel (OPC 10000-6 §6.7.2). Our sequence numbers go with the request ids.
fn secured(kind: [u8; 3], token: Token, request: u32, body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u32(token.channel).u32(token.token).u32(request).u32(request).raw(body);
    chunk::write(kind, &writer.into_bytes())
}

/// The message in a chunk that opens a channel.
fn opening(body: &[u8]) -> Result<&[u8], Error> {
    let mut reader = Reader::new(body);
    reader.u32()?; // the channel's number; the message in it says it again
    let policy = reader.string()?;
    if policy != POLICY_NONE {
        return Err(Error::Policy(shown(&policy)));
    }
    reader.byte_string()?; // the server's certificate, which proves nothing here
    reader.byte_string()?; // the thumbprint of ours, which we don't have
    belongs(&mut reader, OPEN_REQUEST)?;
    Ok(reader.rest())
}

/// What is in a chunk of the response.
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

/// The sequence header.
fn belongs(reader: &mut Reader<'_>, request: u32) -> Result<(), Error> {
    reader.u32()?; // sequence number
    if reader.u32()? != request {
        return Err(Error::Foreign("request"));
    }
    Ok(())
}

/// What an error message and the body of an abort chunk hold (OPC 10000-6 §7.1.2.5 and §6.7.3).
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
