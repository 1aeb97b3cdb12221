//! `opcua`: a discovery handler for OPC UA servers. It asks discovery servers which servers they know (FindServers), and
//! each of these whether it is there and how it can be used (GetEndpoints). No certificates and no credentials are
//! needed for that, by the specification.
//!
//! ```yaml
//! discoveryHandler:
//!   name: opcua
//!   discoveryDetails: |
//!     opcuaDiscoveryMethod:
//!       standard:
//!         discoveryUrls:           # default: opc.tcp://localhost:4840/
//!         - opc.tcp://lds.plant.example:4840/
//!         - opc.tcp://10.0.0.7:4841/pump
//!     applicationNames:            # default: all
//!       action: Exclude            # or Include, the default: only these
//!       items: ["Test server"]     # compared as they are
//! ```
//!
//! A discovery URL is that of a local discovery server, which lists the servers that registered with it, or of a server,
//! which lists itself.
//!
//! # Devices
//!
//! A device is an application of type Server or ClientAndServer whose name passes the filter and that answers
//! GetEndpoints with its own application URI at one of its `opc.tcp` URLs. An entry of a server that has gone, or of one
//! whose port another server uses now, is no device. One application is one device, by whatever servers and URLs it is listed.
//! A discovery server that lists itself is no device, but one that says it is a ClientAndServer has data, too, as those of
//! asyncua do: exclude it by its name if you don't want it.
//!
//! Some servers refuse clients without security. Such a server is there: it is a device with
//! what the discovery server knows of it. Where several are listed at one such URL, one of them is stale: the status names
//! them, and each stays what it was. So does a server that has no connection left to say who it is: it says so, or accepts a
//! connection and ends it.
//!
//! A server is asked at the URLs it is listed with. Where the host in one is a name, it is then asked at the host of its
//! discovery server, too, with the port and path of its own: the name need not resolve here. `localhost`, loopback and
//! 0.0.0.0 are another machine's words for itself, and mean that host alone. A server that lists itself alone is asked at
//! its discovery URL, too: it may be behind an address and a port that it does not know of; there it is believed to be
//! itself even where its endpoints have another URI, as those of some stacks do.
//!
//! The id is the application URI, which is unique in the world by the specification. Servers that were copied with their
//! URI are one device until they get URIs of their own, which the status says where each lists itself, or until the details
//! say `identifyBy: Url`: then the id is the discovery URL of a server that lists itself, or the first listed URL. With
//! `identifyBy: ListedUrl` it is the first listed URL in any case, as in upstream Akri. One without a URI is known by its URL.
//!
//! Its properties are in `docs/reference/handlers/opcua.md`; unknown ones are absent.
//!
//! # What goes wrong
//!
//! A discovery server that does not answer is named in the Configuration's status, and the servers that it listed last
//! stay as they are; those of the others are found. A server that two of them list stays when one is lost. A server that
//! listed only itself is gone when nobody answers at its discovery URL any more. If no name of a discovery URL resolves, or
//! none is granted, the round fails and nothing changes. A server that may not be asked at any of its URLs is named with what would
//! have to be granted; the log says at level debug of others that are listed and not there why not.
//!
//! Discovery servers have 10 s each, 16 at a time, servers 3 s each, 32 at a time. Where that could be more than half of
//! the round for the discovery servers, or the rest of it for the servers, each has less, so that those who are silent
//! don't take the others' turns. What was not asked a second before the round's end stays as it is; the lists take turns,
//! and rounds begin at different places in them, so that each server gets its own. What is more than the memory of a round
//! has room for, or than the host takes, is not taken and stays as it is: lists of 10,000 servers together, 4,096 devices.
//!
//! # Differences from Akri's handler
//!
//! Besides those on that page: in Akri the id is the URL, so that a server that moves is another device, and a URL without a port is
//! refused; here its port is 4840, as registered.

pub mod binary;
pub mod candidate;
pub mod chunk;
#[cfg(target_family = "wasm")]
mod component;
pub mod conversation;
pub mod details;
pub mod device;
#[cfg(test)]
mod fixture;
pub mod message;
pub mod network;
pub mod report;
pub mod round;
#[cfg(target_family = "wasm")]
mod sockets;
pub mod status;
pub mod url;
#[cfg(test)]
mod world;

/// The handler name that Configurations use.
pub const NAME: &str = "opcua";

/// The interval of rounds in milliseconds. Akri's handler has 10 s, but queries discovery servers only.
pub const INTERVAL_MS: u32 = 30_000;
