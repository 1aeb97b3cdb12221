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
//!       action: Exclude            # or Include; default Exclude
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
//! whose port another server uses now, is no device. One application is one device, whoever lists it, by whatever URLs.
//! A discovery server that lists itself is no device, but one that says it is a ClientAndServer has data, too, as those of
//! asyncua do: exclude it by its name if you don't want it.
//!
//! Some servers tell nobody who they are who comes without security, or have no connection left. One that refuses for
//! such a reason is there: it is a device with what the discovery server knows of it.
//!
//! A server is asked at the URLs it is listed with. Where the host in one is a name, or the address of a machine for
//! itself, it is then asked at the host of its discovery server too, with the port and path of its own: a name need not
//! resolve here, and `localhost` is another machine here. A server that lists itself alone is asked at its discovery URL
//! too: it may be behind an address and a port that it does not know of.
//!
//! The id is the application URI, which is unique in the world by the specification. Servers that were copied with their
//! URI are one device until they get URIs of their own. One without a URI is known by its URL.
//!
//! | property | |
//! |---|---|
//! | `OPCUA_DISCOVERY_URL` | where the server answered |
//! | `OPCUA_APPLICATION_NAME` | its name, for people |
//! | `OPCUA_APPLICATION_URI` | its application URI |
//! | `OPCUA_PRODUCT_URI` | that of its product |
//! | `OPCUA_SERVER_CERTIFICATE_THUMBPRINT` | SHA-1 of its certificate in hexadecimal: OPC UA's name for a certificate. Nobody proved to own it: check it when you connect |
//! | `OPCUA_SECURITY_POLICIES` | such as `Basic256Sha256,None` |
//! | `OPCUA_USER_TOKEN_TYPES` | some of `Anonymous,UserName,Certificate,IssuedToken` |
//!
//! What nobody knows is absent.
//!
//! # What goes wrong
//!
//! A discovery server that does not answer is named in the Configuration's status, and the servers that it listed last
//! stay as they are; those of the others are found. A server that two of them list stays when one is lost. If none
//! answers, the round fails and nothing changes. A server that may not be asked is named with what would have to be
//! granted; the log says at level debug of others that are listed and not there why not.
//!
//! Discovery servers have 10 s each, 16 at a time, servers 3 s each, 32 at a time. Where that could be more than half of
//! the round for the discovery servers, or the rest of it for the servers, each has less, so that those who are silent
//! don't take the others' turns. What was not asked a second before the round's end stays as it is; rounds begin at
//! different places, so that each gets its turn. So does what is more than the memory of a round has room for: lists of
//! 10,000 servers together.
//!
//! # Differences from Akri's handler
//!
//! | | Akri | here |
//! |---|---|---|
//! | device id | the URL: a server that moves is another device | the application URI |
//! | ClientAndServer | ignored | a device |
//! | a host name that does not resolve | replaced by host **and port** of the discovery URL | by its host |
//! | several URLs | the first `opc.tcp` one | the first that answers as this application |
//! | a listed server | a device | a device if it is there |
//! | a URL without port | refused | port 4840, as registered |
//! | a discovery server that is lost | its servers go | its servers stay |
//! | a discovery URL that can't work | logged each time | the Configuration is refused, with its line |

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

/// The name Configurations use.
pub const NAME: &str = "opcua";

/// The pause between rounds in milliseconds. Akri's handler has 10 s; it asks no server but the discovery servers.
pub const INTERVAL_MS: u32 = 30_000;
