//! The page: what is observed of a node or a cluster, read-only, for a browser.
//!
//! It is served on loopback alone, so that who reaches it is a user of this machine, or somebody whom the API server allows to
//! forward a port. It has no secrets, no actions and nothing from elsewhere.

mod observer;
mod server;
mod view;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use akri_cli::output::print_text;
use akri_cli::program::stop_signal;
use akri_kube::http::Server;
use anyhow::ensure;
use clap::Args;
use observer::Observer;

use crate::get::args::SourceArgs;

/// Flags of `akri page`.
#[derive(Debug, Args)]
pub(crate) struct PageArgs {
    /// Serve at this address, which has to be of this machine alone.
    #[arg(long, value_name = "ADDRESS", env = "AKRI_PAGE", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 9466)), value_parser = address)]
    listen: SocketAddr,
    #[command(flatten)]
    source: SourceArgs,
}

/// Serves the page until SIGTERM or SIGINT.
pub(crate) async fn run(args: PageArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_signal()?;
    let (_server, address) = start("--listen", args.listen, args.source, None).await?;
    print_text(&format!("http://{address}/ shows what is there, until this ends\n"))?;
    stop.await;
    Ok(ExitCode::SUCCESS)
}

/// Starts to serve the page at the value of a flag; `node` leaves out the devices of other nodes.
async fn start(
    flag: &'static str,
    listen: SocketAddr,
    source: SourceArgs,
    node: Option<String>,
) -> anyhow::Result<(Server, SocketAddr)> {
    let router = server::router(Observer::new(source, node));
    Ok(Server::serve(listen, flag, router).await?)
}

/// Runs `work` with the page beside it, if there is to be one.
pub(crate) async fn beside<T>(
    listen: Option<SocketAddr>,
    source: SourceArgs,
    node: Option<String>,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let _server = match listen {
        Some(listen) => Some(start("--page", listen, source, node).await?),
        None => None,
    };
    Ok(work.await)
}

/// Parses an address of this machine alone; `:9466` is one of IPv4.
pub(crate) fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let text = if text.starts_with(':') { format!("{}{text}", Ipv4Addr::LOCALHOST) } else { text.to_owned() };
    let address: SocketAddr = text.parse()?;
    ensure!(
        [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].contains(&address.ip()),
        "the page has no passwords, so that only 127.0.0.1 and [::1] can serve it, such as 127.0.0.1:9466; from elsewhere use \
         'kubectl port-forward', or 'akri page' with a kubeconfig"
    );
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // threat 70
    fn page_is_served_on_loopback_alone() {
        assert_eq!(address(":9466").unwrap().to_string(), "127.0.0.1:9466");
        assert!(address("[::1]:0").is_ok());
        for other in ["0.0.0.0:9466", "[::]:9466", "10.0.0.1:80", "127.0.0.2:80"] {
            assert!(address(other).unwrap_err().to_string().contains("kubectl port-forward"), "{other}");
        }
        assert!(address("9466").is_err());
    }
}
