//! The properties and behaviour of one simulated camera.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{PORT, TLS_PORT};

/// The user name of cameras with a password.
pub const USER: &str = "admin";

/// The authentication of a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lock {
    /// None.
    Open,
    /// A WS-UsernameToken with this password's digest, created within five seconds by the camera's clock.
    Token(&'static str),
    /// HTTP digest authentication with this password.
    HttpDigest(&'static str),
}

/// The way a camera responds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    Good,
    /// It does not.
    Mute,
    /// With a byte every 50 ms.
    Trickle,
    /// With these bytes, whatever the request.
    Bytes(Vec<u8>),
    /// With a match without the wrapper the specification requires; only for probes.
    Bare,
}

/// A camera.
#[derive(Debug, Clone)]
pub struct Camera {
    /// Its number, from which all its properties derive.
    pub number: u32,
    pub is_on: bool,
    pub lock: Lock,
    /// The way it responds to probes.
    pub discovery: Manner,
    /// The delay of these responses.
    pub hesitation: Duration,
    /// The way its services respond.
    pub service: Manner,
    /// The difference of its clock from ours, in seconds.
    pub clock_ahead: i64,
    /// The announced URLs of its device service; `0.0.0.0` stands for itself.
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

    /// Creates a camera with authentication.
    pub fn with_lock(number: u32, lock: Lock) -> Self {
        Self { lock, ..Self::new(number) }
    }

    pub fn address(&self) -> IpAddr {
        address(self.number)
    }
}

/// Returns the address: `127.0.1.1` and so on.
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

/// Returns its location scope.
pub fn location(number: u32) -> String {
    format!("onvif://www.onvif.org/location/row{}", number % 10)
}
