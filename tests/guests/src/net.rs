//! Sockets, as the standard library has them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::behaviour::Net;
use crate::{Round, answer, device, hint, number};

pub(crate) fn discover(behaviour: Net, argument: &str) -> Round {
    Ok(vec![device(
        "net",
        match behaviour {
            Net::Tcp => vec![outcome("TCP", tcp(argument))],
            Net::Listen => vec![answer("LISTEN", TcpListener::bind(argument))],
            Net::Udp => vec![outcome("UDP", udp(argument))],
            Net::UdpBounce => vec![outcome("UDP", bounce(argument))],
            Net::SocketFlood => flood(number(argument, 1000)),
            Net::SocketReuse => reuse(number(argument, 1000)),
            Net::Resolve => vec![resolve(argument)],
            Net::ResolveFlood => resolve_many(argument),
        },
    )])
}

fn outcome(name: &str, result: std::io::Result<String>) -> (String, String) {
    hint(name, &result.unwrap_or_else(|error| format!("{:?}", error.kind())))
}

/// Says something and hears what comes back until the end.
fn tcp(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"hello\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn udp(address: &str) -> std::io::Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.send_to(b"hello", address)?;
    receive(&socket, Duration::from_secs(5))
}

/// `GRANTED`: asks there that somebody else answer.
fn bounce(address: &str) -> std::io::Result<String> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.send_to(b"bounce", address)?;
    receive(&socket, Duration::from_millis(300))
}

/// The standard library has no timeout here.
fn receive(socket: &UdpSocket, wait: Duration) -> std::io::Result<String> {
    socket.set_nonblocking(true)?;
    let (mut buffer, end) = ([0; 1500], Instant::now() + wait);
    loop {
        match socket.recv_from(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            received => {
                let (length, from) = received?;
                return Ok(format!("{} from {}", String::from_utf8_lossy(&buffer[..length]), from.ip()));
            }
        }
    }
}

/// Holds as many sockets as it gets.
fn flood(count: usize) -> Vec<(String, String)> {
    let held: Vec<_> = (0..count).map_while(|_| UdpSocket::bind("0.0.0.0:0").ok()).collect();
    let next = answer("NEXT", UdpSocket::bind("0.0.0.0:0"));
    vec![hint("OPEN", &held.len().to_string()), next]
}

/// Holds one at a time.
fn reuse(count: usize) -> Vec<(String, String)> {
    let opened = (0..count).map_while(|_| UdpSocket::bind("0.0.0.0:0").ok()).count();
    vec![hint("OPENED", &opened.to_string())]
}

fn resolve(name: &str) -> (String, String) {
    match (name, 80).to_socket_addrs() {
        Ok(addresses) => hint("NAME", &addresses.map(|a| a.ip().to_string()).collect::<Vec<_>>().join(" ")),
        Err(error) => hint("NAME", &format!("error: {error}")),
    }
}

/// `COUNT NAME`: as often.
fn resolve_many(argument: &str) -> Vec<(String, String)> {
    let (count, name) = argument.split_once(' ').unwrap_or(("1", argument));
    let resolved = (0..number(count, 1)).filter(|_| (name, 80).to_socket_addrs().is_ok());
    vec![hint("RESOLVED", &resolved.count().to_string())]
}
