//! Names of environment variables that a handler may set in containers.

/// Variables that change which code a program runs, or whom it trusts. A `*` stands for any rest.
const RESERVED: [&str; 58] = [
    "ALL_PROXY",
    "BASHOPTS",
    "BASH_ENV",
    "BASH_FUNC_*",
    "BASH_LOADABLES_PATH",
    "CDPATH",
    "CLASSPATH",
    "CORECLR_*",
    "COR_*",
    "CURL_CA_BUNDLE",
    "CURL_HOME",
    "DOTNET_*",
    "DYLD_*",
    "EDITOR",
    "ELECTRON_*",
    "ENV",
    "FTP_PROXY",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GIT_*",
    "GLIBC_TUNABLES",
    "GODEBUG",
    "HOME",
    "HOSTALIASES",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "KUBECONFIG",
    "KUBERNETES_*",
    "LD_*",
    "LOCALDOMAIN",
    "LOCPATH",
    "LUA_*",
    "MALLOC_*",
    "NIS_PATH",
    "NLSPATH",
    "NODE_*",
    "NO_PROXY",
    "OPENSSL_*",
    "PAGER",
    "PATH",
    "PERL*",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "PROMPT_COMMAND",
    "PS4",
    "PYTHON*",
    "REQUESTS_CA_BUNDLE",
    "RES_OPTIONS",
    "RUBY*",
    "SHELL",
    "SHELLOPTS",
    "SSL_*",
    "TMPDIR",
    "TZDIR",
    "_JAVA_*",
];

/// Returns whether a name is one of an environment variable: letters, digits and underscores, no digit first.
pub fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b == b'_' || b.is_ascii_alphabetic())
        && bytes.all(|b| b == b'_' || b.is_ascii_alphanumeric())
}

/// Returns whether a variable of this name decides what a program in the container runs or trusts, whatever its case:
/// libraries read `http_proxy` and `HTTP_PROXY` alike.
pub fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    RESERVED.iter().any(|reserved| match reserved.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *reserved,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // threat 13
    fn environment_variable_names_are_recognized() {
        for name in ["A", "_", "UDEV_DEVNODE_0", "lower", "_9"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "9A", "A-B", "A.B", "A=B", "A\nB", "A\0", "A B", "\u{e4}"] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn names_that_choose_code_are_reserved() {
        for name in ["LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS", "PYTHONPATH", "PATH", "https_proxy", "SSL_CERT_FILE"] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["UDEV_DEVNODE", "LDAP_URL", "NODE", "OPCUA_DISCOVERY_URL", "HOMEPAGE", "ENVIRONMENT", "SHELL_1"] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
