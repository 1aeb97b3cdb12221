//! `onvif`: a discovery handler for IP cameras that speak ONVIF.
//!
//! ```yaml
//! discoveryHandler:
//!   name: onvif
//!   discoveryDetails: |                # nothing is required; without details every camera is found
//!     ipAddresses:                     # likewise macAddresses, scopes and uuids
//!       action: Include                # or Exclude; default Include
//!       items: [192.168.1.20]          # one match is enough
//!     discoveryTimeoutSeconds: 1       # how long answers to the probe are waited for, 1 to 30
//!     streamUri: false                 # also ask for the URI of the first media profile's stream,
//!     streamProfile: sub               # or of the profile with this token or name
//!     identifyBy: Uuid                 # or UrlAndUuid: ids as upstream Akri makes them
//!   discoveryProperties:               # credentials, see the module `credentials`
//!   - name: username_default
//!     value: operator
//!   - name: password_default
//!     valueFrom: {secretKeyRef: {name: cameras, key: password}}
//! ```
//!
//! # A round
//!
//! A WS-Discovery probe for network video transmitters goes to 239.255.255.250:3702 on every granted interface, and
//! once more 150 ms later. Cameras that answer while the window is open, and that no filter drops for what they
//! announce, are asked by SOAP over HTTP or HTTPS: for the time, who made them, their network interfaces, and if wanted
//! for scopes and the stream. At most 64 are asked at once, and 4 behind one address. A request has 3 s, a camera 5 s:
//! one that does not answer or breaks off stays as it is, with a note, and holds up no other; of one that answers in part
//! the rest is as before, and asked for again in the next round.
//!
//! The answers of a camera are kept for an hour, or until it announces something else, so that a round in which nothing
//! is new costs one probe. What went wrong is tried again in the next round. A camera that does not answer a probe is
//! asked for the time where it was last: only if it does not answer there either, wants credentials for the time that it did
//! not want before, or another camera has come to that address, is it gone. Hello and Bye start a round.
//!
//! # Devices
//!
//! A camera is one device, and its id is its endpoint reference (in most cases a UUID) without `urn:` and `uuid:`, in
//! lower case. Of several URLs of its device service the first that answers is taken, those with the address it
//! answered from and those with `https` before the others. Where a host is `0.0.0.0` the sender's address is meant. A camera
//! that announces other addresses or names only is tried last at the address it answered from.
//!
//! Its properties are in `docs/reference/handlers/onvif.md`. Where the URL has a name, its IP address is the one that the camera
//! reports; the MAC address is of the interface with that address, else of the first. A camera that a filter can't decide about,
//! for lack of its MAC address say, is held back: it is not published, or stays as it is, and a note says why.
//!
//! # Credentials
//!
//! The password is never sent. A camera gets a WS-UsernameToken digest with the time by its own clock, or, if it asks
//! for it, HTTP digest authentication. Where it accepts them and then refuses its interfaces or scopes, they lack that
//! right, and these are unknown. Credentials that are refused are told in each round, but tried again only once
//! they have changed or after five minutes, for cameras lock out who comes with wrong ones too often.
//!
//! The same page has the differences from upstream Akri.

pub mod announcement;
#[cfg(target_family = "wasm")]
mod component;
pub mod concurrent_jobs;
pub mod credentials;
pub mod decision;
pub mod details;
pub mod device;
pub mod device_service;
pub mod filter;
#[cfg(test)]
mod fixture;
#[cfg(target_family = "wasm")]
mod http_client;
pub mod inquiry;
pub mod memory;
pub mod security;
pub mod service_url;
pub mod session;
pub mod soap;
pub mod survey;
pub mod xml;

/// The handler name that Configurations use.
pub const NAME: &str = "onvif";

/// The interval of rounds in milliseconds. Hello and Bye start a round sooner, but a camera that loses power sends
/// neither.
pub const INTERVAL_MS: u32 = 30_000;
