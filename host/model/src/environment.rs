//! Names of environment variables that a handler may set in containers.

/// Variables that change which code a program runs, whom it trusts, or which devices a runtime gives it, by what reads them. A
/// `*` stands for anything. No such list is complete: it is a second line behind the names that handlers document.
const RESERVED: [&str; 15] = [
    // loaders, the C library, and the allocator
    "DYLD_* GCONV_PATH GETCONF_DIR GLIBC_TUNABLES HOSTALIASES LD_* LOCALDOMAIN LOCPATH MALLOC_* NIS_PATH NLSPATH",
    "RES_OPTIONS TMPDIR TZDIR",
    // shells and what they start
    "BASHOPTS BASH_ENV BASH_FUNC_* BASH_LOADABLES_PATH CDPATH EDITOR ENV HOME IFS PAGER PATH PROMPT_COMMAND PS4 SHELL",
    "LESSCLOSE LESSOPEN SHELLOPTS XDG_* ZDOTDIR",
    // languages and their runtimes
    "CLASSPATH CORECLR_* COR_* DOTNET_* ELECTRON_* ERL_* GODEBUG JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS JULIA_* LUA_*",
    "NODE_* PERL* PHPRC PHP_INI_SCAN_DIR PSMODULEPATH PYTHON* RUBY* R_ENVIRON* R_HOME R_LIBS* R_PROFILE* SPRING_*",
    "TCLLIBPATH *_JAVA_OPTIONS *_OPTS _JAVA_*",
    // packages and builds
    "BUNDLE_* CARGO_* GEM_* GIT_* MAKEFILES NPM_CONFIG_* RUSTC* CFLAGS CXXFLAGS GOFLAGS",
    "LDFLAGS MAKEFLAGS RUSTFLAGS",
    // libraries that load modules, and drivers
    "ALSA_CONFIG_* CUDA_INJECTION* GIO_* GST_* GTK_* LADSPA_PATH LIBGL_* LIBVA_* OCL_* OMPI_* OMP_TOOL* QT_*",
    "SDL_DYNAMIC_API VK_* *_DRIVERS_PATH *_MODULE_PATH *_PLUGIN_PATH *_PRELOAD",
    // trust, proxies, and the servers of clients
    "AWS_* AZURE_CONFIG_DIR CURL_CA_BUNDLE CURL_HOME DBUS_SESSION_BUS_ADDRESS DBUS_SYSTEM_BUS_ADDRESS",
    "DOCKER_* GOOGLE_APPLICATION_CREDENTIALS KRB5* KUBECONFIG KUBERNETES_* MYSQL_* OPENSSL_* PGHOST PGPASSFILE",
    "PGSERVICE* REQUESTS_CA_BUNDLE SSL_* *_PROXY",
    // devices that container runtimes give
    "ASCEND_* NVIDIA_* *_RUNTIME_OPTIONS *_VISIBLE_DEVICES",
];

/// Returns whether Kubernetes accepts a name as that of an environment variable: letters, digits, `_`, `-` and `.`, no digit first.
pub fn is_name(name: &str) -> bool {
    let is_other = |b: &u8| matches!(b, b'_' | b'-' | b'.') || b.is_ascii_alphabetic();
    let starts = name.bytes().next().is_some_and(|first| is_other(&first));
    starts && name != "." && !name.starts_with("..") && name.bytes().all(|b| is_other(&b) || b.is_ascii_digit())
}

/// Returns whether a variable of this name decides what a program in the container runs or trusts, whatever its case:
/// libraries read `http_proxy` and `HTTP_PROXY` alike, and some `spring.config.name` as `SPRING_CONFIG_NAME`.
pub fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_uppercase().replace(['-', '.'], "_");
    let mut reserved = RESERVED.iter().flat_map(|names| names.split(' '));
    reserved.any(|reserved| match (reserved.strip_prefix('*'), reserved.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == reserved,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // threat 13
    fn environment_variable_names_are_recognized() {
        for name in
            ["A", "_", "UDEV_DEVNODE_0", "lower", "_9", "USB_RESOURCE_AKRI_SH_USB-KEY", "resolution-width", ".a", "a.b"]
        {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "9A", "..", "..a", ".", "A/B", "A=B", "A\nB", "A\0", "A B", "\u{e4}"] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test] // rule 137, threat 13
    fn names_that_choose_code_are_reserved() {
        let of_runtimes_and_tools = "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES ROCR_VISIBLE_DEVICES RUSTC_WRAPPER \
            CARGO_HOME MAVEN_OPTS CATALINA_OPTS ERL_AFLAGS R_PROFILE GEM_PATH BUNDLE_GEMFILE JULIA_LOAD_PATH PSModulePath \
            TCLLIBPATH GTK_MODULES QT_PLUGIN_PATH GST_PLUGIN_PATH OCL_ICD_VENDORS VK_ICD_FILENAMES LIBGL_DRIVERS_PATH \
            ALSA_CONFIG_PATH DOCKER_HOST KRB5_CONFIG AWS_ENDPOINT_URL XDG_CONFIG_HOME NPM_CONFIG_PREFIX OMPI_MCA_x \
            SPRING_APPLICATION_JSON PGHOST MYSQL_HOME OMP_TOOL_LIBRARIES CUDA_INJECTION64_PATH SDL_DYNAMIC_API \
            LIBVA_DRIVERS_PATH LESSOPEN ZDOTDIR MAKEFLAGS IBM_JAVA_OPTIONS ASCEND_RUNTIME_OPTIONS \
            DBUS_SYSTEM_BUS_ADDRESS GOOGLE_APPLICATION_CREDENTIALS";
        for name in of_runtimes_and_tools.split_whitespace() {
            assert!(is_reserved(name), "{name}");
        }
        for name in [
            "LD-PRELOAD",
            "spring.config.location",
            "LD_PRELOAD",
            "BASH_ENV",
            "NODE_OPTIONS",
            "PYTHONPATH",
            "PATH",
            "https_proxy",
            "SSL_CERT_FILE",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        for name in [
            "UDEV_DEVNODE",
            "LDAP_URL",
            "NODE",
            "OPCUA_DISCOVERY_URL",
            "HOMEPAGE",
            "ENVIRONMENT",
            "SHELL_1",
            "ONVIF_DEVICE_SERVICE_URL",
            "DEVICE_PATH",
        ] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
