//! Behaviours of a handler that tries to use something that was not granted.

use std::net::{TcpStream, UdpSocket};

use crate::akri::discovery::{multicast, secrets};
use crate::behaviour::Reach;
use crate::{Round, answer, device, hint};

pub(crate) fn discover(behaviour: Reach) -> Round {
    Ok(vec![match behaviour {
        Reach::Environment => device("environment", environment()),
        Reach::Network => device("network", network()),
        Reach::Capabilities => device("capabilities", capabilities()),
    }])
}

fn environment() -> Vec<(String, String)> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    vec![
        hint("ARGUMENTS", &std::env::args().count().to_string()),
        hint("ENVIRONMENT", &std::env::vars().count().to_string()),
        hint("STDIN", &format!("{:?}", read.ok())),
        answer("ROOT", std::fs::read_dir("/")),
        answer("PASSWD", std::fs::read("/etc/passwd")),
        answer("WRITE", std::fs::write("file", "text")),
        hint("CLOCK", if std::time::SystemTime::UNIX_EPOCH.elapsed().is_ok() { "runs" } else { "stands" }),
    ]
}

fn network() -> Vec<(String, String)> {
    vec![
        answer("UDP", UdpSocket::bind("127.0.0.1:0")),
        answer("TCP", TcpStream::connect("127.0.0.1:9")),
        answer("NAME", std::net::ToSocketAddrs::to_socket_addrs("localhost:80")),
    ]
}

fn capabilities() -> Vec<(String, String)> {
    vec![answer("SECRETS", secrets::get("password")), answer("MULTICAST", multicast::open("239.255.255.250", 3702))]
}
