//! The platforms of nodes, for which components are compiled.

use std::fmt;
use std::str::FromStr;

/// A platform, by the name that container images give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    name: &'static str,
    /// The compiler's target, whose naming keeps it from using what the processor at hand has beyond the architecture's
    /// baseline: code that is made with the image runs on every node. None: the processor at hand.
    pub(crate) target: Option<&'static str>,
    /// Bytes of a pointer.
    pub(crate) pointer: usize,
}

/// The platforms of Akri's image.
pub(crate) const PLATFORMS: [Platform; 3] = [
    Platform { name: "linux/amd64", target: Some("x86_64-unknown-linux-gnu"), pointer: 8 },
    Platform { name: "linux/arm64", target: Some("aarch64-unknown-linux-gnu"), pointer: 8 },
    // The compiler has no machine code for it: code of its interpreter.
    Platform { name: "linux/arm/v7", target: Some("pulley32"), pointer: 4 },
];

impl Platform {
    /// Returns that of this program.
    #[must_use]
    pub const fn here() -> Self {
        let [amd64, arm64, arm] = PLATFORMS;
        if cfg!(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")) {
            amd64
        } else if cfg!(all(target_arch = "aarch64", target_os = "linux", target_env = "gnu")) {
            arm64
        } else if cfg!(all(target_arch = "arm", target_os = "linux")) {
            arm
        } else {
            Self { name: std::env::consts::ARCH, target: None, pointer: size_of::<usize>() }
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = PLATFORMS.into_iter().chain([Self::here()]).find(|known| known.name == name);
        known.ok_or_else(|| format!("it is none of {}", PLATFORMS.map(|known| known.name).join(", ")))
    }
}
