//! OPC UA servers that violate the protocol, each at one point of a conversation.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

const CHANNEL: u32 = 7;
const TOKEN: u32 = 9;

/// A server's behaviour, and the expected error.
pub struct Behaviour {
    pub name: &'static str,
    pub printed: &'static str,
    act: fn(TcpStream) -> io::Result<()>,
}

/// Lists as many servers as fit into a response, with names that take much memory when parsed.
pub const CROWD: Behaviour = Behaviour { name: "lists a crowd", printed: "", act: crowd };

/// Reports the identity of another server, in a long response.
pub const EXAGGERATOR: Behaviour = Behaviour { name: "boasts", printed: "", act: exaggerate };

/// All other behaviours.
#[rustfmt::skip]
pub const BEHAVIOURS: &[Behaviour] = &[
    Behaviour { name: "hangs up", printed: "the connection broke off", act: |mut stream| receive(&mut stream) },
    Behaviour { name: "breaks off", printed: "the connection broke off", act: |_| Ok(()) },
    Behaviour { name: "is silent", printed: "no answer within", act: wait },
    Behaviour { name: "speaks HTTP", printed: r#"what came is no OPC UA: it begins with "HTTP/1.1""#, act: answer_http },
    Behaviour { name: "stalls after Hello", printed: "no answer within", act: stall },
    Behaviour { name: "drips", printed: "no answer within", act: drip },
    Behaviour { name: "refuses", printed: "it answers BadTcpServerTooBusy: come back tomorrow", act: refuse },
    Behaviour { name: "sends a huge chunk", printed: "it sent a chunk of 4294967295 bytes (at most 65536)", act: send_huge },
    Behaviour { name: "sends chunks without end", printed: "its response has more than 256 chunks", act: send_many },
    Behaviour { name: "sends bytes without end", printed: "its response has more than", act: send_much },
    Behaviour { name: "gives up", printed: "it answers BadResponseTooLarge: too much", act: give_up },
    Behaviour { name: "answers for another token", printed: "it sent a chunk for another token", act: mistake_token },
    Behaviour { name: "answers before it is asked", printed: "it sent what it was not asked for", act: answer_unasked },
    Behaviour { name: "nests diagnostics", printed: "its response can't be read", act: nest },
    Behaviour { name: "claims 2 GiB of XML", printed: "its response can't be read", act: claim_xml },
];

impl Behaviour {
    /// Serves at an address until the stories end.
    pub fn start(&self, address: SocketAddr) {
        let listener = TcpListener::bind(address).unwrap();
        let act = self.act;
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || act(connection));
            }
        });
    }
}

/// Waits until the peer closes the connection.
fn wait(mut stream: TcpStream) -> io::Result<()> {
    io::copy(&mut stream, &mut io::sink()).map(|_| ())
}

fn answer_http(mut stream: TcpStream) -> io::Result<()> {
    receive(&mut stream)?;
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
    wait(stream)
}

fn stall(mut stream: TcpStream) -> io::Result<()> {
    acknowledge(&mut stream)?;
    wait(stream)
}

/// Sends a byte now and then, so that each read returns something.
fn drip(mut stream: TcpStream) -> io::Result<()> {
    receive(&mut stream)?;
    for byte in acknowledgement().into_iter().cycle() {
        stream.write_all(&[byte])?;
        thread::sleep(std::time::Duration::from_millis(200));
    }
    Ok(())
}

fn refuse(mut stream: TcpStream) -> io::Result<()> {
    receive(&mut stream)?;
    stream.write_all(&chunk(b"ERRF", &[&0x807d_0000u32.to_le_bytes(), &string("come back tomorrow")]))?;
    wait(stream)
}

fn send_huge(mut stream: TcpStream) -> io::Result<()> {
    acknowledge(&mut stream)?;
    receive(&mut stream)?;
    stream.write_all(b"OPNF\xff\xff\xff\xff")?;
    flood(stream, &[0; 4096])
}

fn send_many(stream: TcpStream) -> io::Result<()> {
    let stream = open(stream)?;
    flood(stream, &message(b"MSGC", TOKEN, &[]))
}

fn send_much(stream: TcpStream) -> io::Result<()> {
    let stream = open(stream)?;
    flood(stream, &message(b"MSGC", TOKEN, &[0; 60_000]))
}

fn give_up(mut stream: TcpStream) -> io::Result<()> {
    stream = open(stream)?;
    let error = [0x80b9_0000u32.to_le_bytes().to_vec(), string("too much")].concat();
    stream.write_all(&[message(b"MSGC", TOKEN, b"half"), message(b"MSGA", TOKEN, &error)].concat())?;
    wait(stream)
}

fn mistake_token(stream: TcpStream) -> io::Result<()> {
    answer(stream, TOKEN + 1, b"anything")
}

fn answer_unasked(mut stream: TcpStream) -> io::Result<()> {
    acknowledge(&mut stream)?;
    stream.write_all(&message(b"MSGF", TOKEN, b"anything"))?;
    wait(stream)
}

fn nest(stream: TcpStream) -> io::Result<()> {
    let mut stream = open(stream)?;
    stream.write_all(&message(b"MSGC", TOKEN, &response_header()))?;
    for _ in 0..16 {
        stream.write_all(&message(b"MSGC", TOKEN, &[0x40; 60_000]))?;
    }
    stream.write_all(&message(b"MSGF", TOKEN, &[0x40]))?;
    wait(stream)
}

fn claim_xml(stream: TcpStream) -> io::Result<()> {
    let xml = [[0, 0, 0, 0, 0, 0, 0, 2].as_slice(), &i32::MAX.to_le_bytes()].concat();
    answer(stream, TOKEN, &[response_header(), xml].concat())
}

fn crowd(stream: TcpStream) -> io::Result<()> {
    let count = 128u32;
    let servers = (0..count).flat_map(|number| application(&format!("urn:crowd:{number}"), 4000));
    let servers: Vec<u8> = servers.collect();
    respond(stream, &[response_header(), vec![0; 8], count.to_le_bytes().to_vec(), servers].concat())
}

fn exaggerate(stream: TcpStream) -> io::Result<()> {
    let header = [[1, 0, 0xaf, 1].as_slice(), &[0; 24]].concat(); // a response to GetEndpoints, without diagnostics
    let endpoint = [string(""), application(&"\u{1}".repeat(8000), 8000), string(""), vec![1, 0, 0, 0]].concat();
    let rest = [string("#None"), vec![0; 4], string(""), vec![0]].concat(); // no user tokens, security level 0
    respond(stream, &[header, vec![1, 0, 0, 0], endpoint, rest].concat())
}

/// Returns a server on loopback whose product URI and name take much memory when parsed.
fn application(uri: &str, length: usize) -> Vec<u8> {
    let text = string(&"\u{1}".repeat(length));
    let null = [0xff; 8]; // gateway, profile
    let url = string("opc.tcp://127.0.0.1:1/");
    [string(uri), text.clone(), vec![2], text, vec![0; 4], null.to_vec(), vec![1, 0, 0, 0], url].concat()
}

/// Sends a response in chunks.
fn respond(stream: TcpStream, response: &[u8]) -> io::Result<()> {
    let mut stream = open(stream)?;
    let mut chunks = response.chunks(60_000).peekable();
    while let Some(part) = chunks.next() {
        let kind = if chunks.peek().is_some() { b"MSGC" } else { b"MSGF" };
        stream.write_all(&message(kind, TOKEN, part))?;
    }
    wait(stream)
}

/// Returns a response to FindServers up to its diagnostics.
fn response_header() -> Vec<u8> {
    [[1, 0, 0xa9, 1].as_slice(), &[0; 16]].concat()
}

fn answer(stream: TcpStream, token: u32, body: &[u8]) -> io::Result<()> {
    let mut stream = open(stream)?;
    stream.write_all(&message(b"MSGF", token, body))?;
    wait(stream)
}

/// Sends bytes until the peer closes the connection.
fn flood(mut stream: TcpStream, bytes: &[u8]) -> io::Result<()> {
    loop {
        stream.write_all(bytes)?;
    }
}

fn acknowledge(stream: &mut TcpStream) -> io::Result<()> {
    receive(stream)?;
    stream.write_all(&acknowledgement())
}

fn acknowledgement() -> Vec<u8> {
    chunk(b"ACKF", &[0u32, 65_536, 65_536, 0, 0].map(u32::to_le_bytes).each_ref().map(<[u8; 4]>::as_slice))
}

/// Handles a conversation up to the request.
fn open(mut stream: TcpStream) -> io::Result<TcpStream> {
    acknowledge(&mut stream)?;
    receive(&mut stream)?;
    let policy = string("http://opcfoundation.org/UA/SecurityPolicy#None");
    let null = [0xff; 8]; // certificate, thumbprint
    let numbers = [1u32, 1].map(u32::to_le_bytes).concat(); // sequence number, request
    let response = [[1, 0, 0xc1, 1].as_slice(), &[0; 16], &[0; 8]].concat(); // no diagnostics, strings, header
    let token = [0, CHANNEL, TOKEN].map(u32::to_le_bytes).concat();
    stream.write_all(&chunk(
        b"OPNF",
        &[&CHANNEL.to_le_bytes(), &policy, &null, &numbers, &response, &token, &[0; 12], &[0xff; 4]],
    ))?;
    receive(&mut stream)?;
    Ok(stream)
}

fn message(kind: &[u8; 4], token: u32, body: &[u8]) -> Vec<u8> {
    let numbers = [CHANNEL, token, 2, 2].map(u32::to_le_bytes).concat();
    chunk(kind, &[&numbers, body])
}

fn chunk(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let size = u32::try_from(body.len() + 8).unwrap();
    [kind.as_slice(), &size.to_le_bytes(), &body].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_le_bytes(), text.as_bytes()].concat()
}

/// Receives one chunk.
fn receive(stream: &mut TcpStream) -> io::Result<()> {
    let mut header = [0; 8];
    stream.read_exact(&mut header)?;
    let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    let mut body = vec![0; size as usize - header.len()];
    stream.read_exact(&mut body)
}
