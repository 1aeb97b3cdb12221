//! OPC UA status codes relevant to discovery.

use std::fmt::{self, Display, Formatter};

/// A StatusCode (OPC 10000-6 annex A.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Returns whether the severity is `Bad`.
    pub fn is_bad(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }

    /// Returns whether the server refuses clients without security.
    pub fn demands_security(self) -> bool {
        matches!(self.0, 0x8013_0000 | 0x8054_0000 | 0x8055_0000 | 0x80E6_0000)
    }

    /// Returns whether the server has no free connections or memory, which says nothing about its identity.
    pub fn is_busy(self) -> bool {
        matches!(self.0, 0x8003_0000 | 0x8004_0000 | 0x807D_0000 | 0x8081_0000 | 0x80EE_0000)
    }

    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x8002_0000 => "BadInternalError",
            0x8003_0000 => "BadOutOfMemory",
            0x8004_0000 => "BadResourceUnavailable",
            0x8005_0000 => "BadCommunicationError",
            0x8007_0000 => "BadDecodingError",
            0x8008_0000 => "BadEncodingLimitsExceeded",
            0x800A_0000 => "BadTimeout",
            0x800B_0000 => "BadServiceUnsupported",
            0x800C_0000 => "BadShutdown",
            0x800D_0000 => "BadServerNotConnected",
            0x800E_0000 => "BadServerHalted",
            0x8013_0000 => "BadSecurityChecksFailed",
            0x801F_0000 => "BadUserAccessDenied",
            0x803D_0000 => "BadNotSupported",
            0x8054_0000 => "BadSecurityModeRejected",
            0x8055_0000 => "BadSecurityPolicyRejected",
            0x807D_0000 => "BadTcpServerTooBusy",
            0x807E_0000 => "BadTcpMessageTypeInvalid",
            0x807F_0000 => "BadTcpSecureChannelUnknown",
            0x8080_0000 => "BadTcpMessageTooLarge",
            0x8081_0000 => "BadTcpNotEnoughResources",
            0x8082_0000 => "BadTcpInternalError",
            0x8083_0000 => "BadTcpEndpointUrlInvalid",
            0x80B8_0000 => "BadRequestTooLarge",
            0x80B9_0000 => "BadResponseTooLarge",
            0x80E6_0000 => "BadSecurityModeInsufficient",
            0x80EE_0000 => "BadServerTooBusy",
            _ => return None,
        })
    }
}

impl Display for Status {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "status {:#010x}", self.0),
        }
    }
}

/// A refusal by a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status code.
    pub status: Status,
    /// The reason, possibly empty.
    pub reason: String,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, reason: String::new() }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { status, reason } = self;
        if reason.is_empty() { write!(f, "{status}") } else { write!(f, "{status}: {reason}") }
    }
}
