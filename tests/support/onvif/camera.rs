//! One camera: who it is and how it behaves.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{PORT, TLS_PORT};

/// The user name of every camera that wants one.
pub const USER: &str = "admin";

/// How a camera finds out who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lock {
    /// Not at all.
    Open,
    /// By a WS-UsernameToken with this password's digest, made within five seconds by its own clock.
    Token(&'static str),
    /// By HTTP digest authentication, and by nothing else.
    HttpDigest(&'static str),
}

/// How a camera answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    Good,
    /// Never.
    Mute,
    /// A byte every 50 ms.
    Trickle,
    /// With this, whatever the question.
    Bytes(Vec<u8>),
    /// A match without the element around it that the specification has there; only for probes.
    Bare,
}

/// A camera.
#[derive(Debug, Clone)]
pub struct Camera {
    /// What everything about it is made of.
    pub number: u32,
    pub is_on: bool,
    pub lock: Lock,
    /// How it answers probes.
    pub discovery: Manner,
    /// How long it waits before it does.
    pub hesitation: Duration,
    /// How its services answer.
    pub service: Manner,
    /// How far its clock is ahead, in seconds.
    pub clock_ahead: i64,
    /// Where it says that its device service is; `0.0.0.0` for itself.
    pub urls: String,
    pub with_scopes: bool,
}

impl Camera {
    pub fn new(number: u32) -> Self {
        Self {
            number,
            is_on: true,
            lock: Lock::Open,
            discovery: Manner::Good,
            hesitation: Duration::ZERO,
            service: Manner::Good,
            clock_ahead: 0,
            urls: url(number),
            with_scopes: true,
        }
    }

    /// One that wants a password.
    pub fn with_lock(number: u32, lock: Lock) -> Self {
        Self { lock, ..Self::new(number) }
    }

    pub fn address(&self) -> IpAddr {
        address(self.number)
    }
}

/// The addresses are those of `127.0.1.1` and so on.
pub fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 0, 1, 1)) + number).into()
}

pub fn uuid(number: u32) -> String {
    format!("5f5a69c2-e0ae-504f-829b-{number:012x}")
}

pub fn mac(number: u32) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", number >> 8, number & 0xff)
}

pub fn url(number: u32) -> String {
    format!("http://{}:{PORT}/onvif/device_service", address(number))
}

pub fn tls_url(number: u32) -> String {
    format!("https://{}:{TLS_PORT}/onvif/device_service", address(number))
}

/// The scope that says where it is.
pub fn location(number: u32) -> String {
    format!("onvif://www.onvif.org/location/row{}", number % 10)
}
