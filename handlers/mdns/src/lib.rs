//! `mdns`: a discovery handler for services that announce themselves by multicast DNS (RFC 6762) and DNS-based service
//! discovery (RFC 6763): printers, speakers, ESPHome and Matter devices, and programs.
//!
//! ```yaml
//! discoveryHandler:
//!   name: mdns
//!   discoveryDetails: |
//!     services: [_ipp._tcp, _printer._tcp]   # required; subtypes as _color._sub._ipp._tcp
//!     instances:                             # filter by the name of the instance
//!       action: Include                      # or Exclude; default Include
//!       items: ["Hall*"]                     # one match is enough
//!     txt: {items: ["duplex", "ty=Laser*"]}  # likewise, by entries of the TXT record
//!     discoveryTimeoutSeconds: 3             # how long responses are waited for, 1 to 30
//! ```
//!
//! # A round
//!
//! Questions for pointers to instances go to 224.0.0.251 and ff02::fb on every granted interface: at once, and while the
//! window is open again after 1 s, 3 s, 7 s and 15 s. Later ones also ask for what responses left open: ports, hosts, TXT
//! records and addresses, and known instances that have been silent. When the window closes, what is open still is asked
//! for twice more, a second each; but not for the IPv6 addresses of a host that had none before (or IPv4, likewise). Each
//! instance has a message of its own, since the response to one may be cut without a sign of it; where the host's limit on
//! messages does not suffice for all, each round begins at another instance, and the others stay as they are. An instance that then has answered none of at least two questions does not exist (RFC
//! 6762, section 10.5); an instance that says goodbye does not, either. An instance of which a part was not answered stays as it
//! is, with a note, and so do silent ones if responses were lost on the way through the host.
//!
//! Questions come from a port of their own, so that responders answer to that port (RFC 6762, section 6.7). Responses that
//! others get by multicast are read, too.
//!
//! Responses to the group that mention one of the services start a round: announcements, changes and goodbyes. Answers to
//! this handler count, too, where a responder also sends them to the group; the host's pause between such rounds grows to 30 s.
//!
//! # Devices
//!
//! An instance is one device, and its id is its full name in lower case, such as `hall printer._ipp._tcp.local`. Its properties
//! are in `docs/reference/handlers/mdns.md`.

pub mod browser;
#[cfg(target_family = "wasm")]
mod component;
pub mod details;
pub mod filter;
#[cfg(test)]
mod fixture;
pub mod memory;
pub mod message;
pub mod name;
pub mod text;

use std::time::Duration;

/// The handler name that Configurations use.
pub const NAME: &str = "mdns";
/// The port of multicast DNS.
pub const PORT: u16 = 5353;
/// The groups of multicast DNS.
pub const GROUPS: [&str; 2] = ["224.0.0.251", "[ff02::fb]"];
/// The interval of rounds in milliseconds. Announcements and goodbyes start a round sooner, but a device that loses power
/// says no goodbye.
pub const INTERVAL_MS: u32 = 60_000;
/// The number of times that open questions are repeated after the window.
pub const CONFIRMATIONS: u32 = 2;
/// The time between questions at the beginning, and for each repetition at the end.
pub const PAUSE: Duration = Duration::from_secs(1);

/// Returns when questions are sent within a window: the first two a second apart, and then less and less often (RFC 6762,
/// section 5.2).
pub fn question_times(window: Duration) -> Vec<Duration> {
    let mut times = vec![Duration::ZERO];
    let mut next = PAUSE;
    while next < window {
        times.push(next);
        next = next * 2 + PAUSE;
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_sent_less_and_less_often() {
        for (window, expected) in [(1, &[0][..]), (2, &[0, 1]), (3, &[0, 1]), (4, &[0, 1, 3]), (30, &[0, 1, 3, 7, 15])]
        {
            let times: Vec<u64> = question_times(Duration::from_secs(window)).iter().map(Duration::as_secs).collect();
            assert_eq!(times, expected, "{window}");
        }
    }
}
