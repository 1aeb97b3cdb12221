//! Names of environment variables that a handler may set in containers.

/// Variables that change which code a program runs, whom it trusts, or which devices a runtime gives it. A `*` stands for
/// anything.
const RESERVED: [&str; 89] = [
    "*_OPTS",
    "*_PROXY",
    "*_VISIBLE_DEVICES",
    "ALSA_CONFIG_*",
    "AWS_*",
    "BASHOPTS",
    "BASH_ENV",
    "BASH_FUNC_*",
    "BASH_LOADABLES_PATH",
    "BUNDLE_*",
    "CARGO_*",
    "CDPATH",
    "CLASSPATH",
    "CORECLR_*",
    "COR_*",
    "CURL_CA_BUNDLE",
    "CURL_HOME",
    "DOCKER_*",
    "DOTNET_*",
    "DYLD_*",
    "EDITOR",
    "ELECTRON_*",
    "ENV",
    "ERL_*",
    "GCONV_PATH",
    "GEM_*",
    "GETCONF_DIR",
    "GIO_*",
    "GIT_*",
    "GLIBC_TUNABLES",
    "GODEBUG",
    "GST_*",
    "GTK_*",
    "HOME",
    "HOSTALIASES",
    "IFS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "JULIA_*",
    "KRB5*",
    "KUBECONFIG",
    "KUBERNETES_*",
    "LD_*",
    "LIBGL_*",
    "LOCALDOMAIN",
    "LOCPATH",
    "LUA_*",
    "MALLOC_*",
    "MYSQL_*",
    "NIS_PATH",
    "NLSPATH",
    "NODE_*",
    "NPM_CONFIG_*",
    "NVIDIA_*",
    "OCL_*",
    "OMPI_*",
    "OPENSSL_*",
    "PAGER",
    "PATH",
    "PERL*",
    "PGHOST",
    "PGPASSFILE",
    "PGSERVICE*",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "PROMPT_COMMAND",
    "PS4",
    "PSMODULEPATH",
    "PYTHON*",
    "QT_*",
    "REQUESTS_CA_BUNDLE",
    "RES_OPTIONS",
    "RUBY*",
    "RUSTC*",
    "RUSTFLAGS",
    "R_ENVIRON*",
    "R_HOME",
    "R_LIBS*",
    "R_PROFILE*",
    "SHELL",
    "SHELLOPTS",
    "SPRING_*",
    "SSL_*",
    "TCLLIBPATH",
    "TMPDIR",
    "TZDIR",
    "VK_*",
    "XDG_*",
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
    RESERVED.iter().any(|reserved| match (reserved.strip_prefix('*'), reserved.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == *reserved,
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

    #[test] // rule 137, threat 13
    fn names_that_choose_code_are_reserved() {
        let of_runtimes_and_tools = "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES ROCR_VISIBLE_DEVICES RUSTC_WRAPPER \
            CARGO_HOME MAVEN_OPTS CATALINA_OPTS ERL_AFLAGS R_PROFILE GEM_PATH BUNDLE_GEMFILE JULIA_LOAD_PATH PSModulePath \
            TCLLIBPATH GTK_MODULES QT_PLUGIN_PATH GST_PLUGIN_PATH OCL_ICD_VENDORS VK_ICD_FILENAMES LIBGL_DRIVERS_PATH \
            ALSA_CONFIG_PATH DOCKER_HOST KRB5_CONFIG AWS_ENDPOINT_URL XDG_CONFIG_HOME NPM_CONFIG_PREFIX OMPI_MCA_x \
            SPRING_APPLICATION_JSON PGHOST MYSQL_HOME";
        for name in of_runtimes_and_tools.split_whitespace() {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS", "PYTHONPATH", "PATH", "https_proxy", "SSL_CERT_FILE"] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["UDEV_DEVNODE", "LDAP_URL", "NODE", "OPCUA_DISCOVERY_URL", "HOMEPAGE", "ENVIRONMENT", "SHELL_1"] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
