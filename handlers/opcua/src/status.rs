//! OPC UA status codes, by name where discovery meets them.

use std::fmt::{self, Display, Formatter};

/// A StatusCode (OPC 10000-6 annex A.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// Whether it says that something went wrong: the severity bits are `Bad`.
    pub fn is_bad(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }

    fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x8002_0000 => "BadInternalError",
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
