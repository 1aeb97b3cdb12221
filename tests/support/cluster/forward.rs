//! Makes the API server, which is in the cluster's network, reachable at a loopback address of this machine.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::thread;

use anyhow::Context as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::machine::CONTROL;

/// Forwards connections until the process ends. A socket stays in the network namespace it was created in: the
/// listening one here, the others there.
pub(super) fn run(port: u16, machine: i32) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("port {port}"))?;
    let network =
        File::open(format!("/proc/{machine}/ns/net")).context("the control plane's machine does not exist")?;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    for client in listener.incoming() {
        let client = client?;
        thread::spawn(move || pass(&client));
    }
    Ok(())
}

/// Forwards one connection; closes it if there is no server.
fn pass(client: &TcpStream) -> io::Result<()> {
    let server = &TcpStream::connect((CONTROL, 443))?;
    for stream in [client, server] {
        stream.set_nodelay(true)?; // nothing is measured here that is not the API server's
    }
    thread::scope(|scope| {
        scope.spawn(|| copy(client, server));
        copy(server, client)
    })
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let copied = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write); // the other side may have closed it
    copied.map(drop)
}
