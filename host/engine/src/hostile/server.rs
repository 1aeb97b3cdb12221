//! Servers on loopback that tests talk to. They live as long as the test's process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// A server that treats each connection with `serve`, on a thread of its own.
pub(super) fn serve(address: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// A server that answers each request with this text.
pub(super) fn answering(address: &str, answer: impl AsRef<[u8]> + Send + Sync + 'static) -> SocketAddr {
    serve(address, move |mut stream| {
        head(&mut stream);
        let _ = stream.write_all(answer.as_ref()); // who reads too much may have gone
    })
}

/// A response with a body.
pub(super) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Reads up to the end of a request's head; what it said.
pub(super) fn head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}
