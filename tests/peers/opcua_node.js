// OPC UA servers and discovery servers by node-opcua. Says `ready` when all is there; SIGTERM ends it in an orderly way.
//
// The arguments are a directory for its certificates, which it keeps there, and JSON:
//   port       where it listens, on all addresses: this wants a network namespace of its own
//   uri, name  what it says of itself
//   type       "DiscoveryServer", or nothing for a server
//   register   URL of a discovery server to register with
//   secured    true for a server that says nothing to who comes without security
"use strict";

const { MessageSecurityMode, OPCUACertificateManager, OPCUADiscoveryServer, OPCUAServer, RegisterServerMethod } = require("node-opcua");

const [, , directory, json] = process.argv;
const wanted = JSON.parse(json);

async function main() {
  const certificates = new OPCUACertificateManager({
    rootFolder: directory,
    automaticallyAcceptUnknownCertificate: true,
  });
  await certificates.initialize();
  const server = make(certificates);
  const registered = wanted.register && new Promise((resolve) => server.once("serverRegistered", resolve));
  await server.start();
  await registered;
  console.log("ready");
  process.once("SIGTERM", () => server.shutdown().then(() => process.exit(0)));
}

function make(serverCertificateManager) {
  const serverInfo = { applicationUri: wanted.uri, applicationName: { text: wanted.name } };
  const common = { port: wanted.port, serverInfo, serverCertificateManager };
  if (wanted.type === "DiscoveryServer") {
    return new OPCUADiscoveryServer(common);
  }
  const registerServerMethod = wanted.register ? RegisterServerMethod.LDS : RegisterServerMethod.HIDDEN;
  const secured = { disableDiscovery: true, securityModes: [MessageSecurityMode.SignAndEncrypt] };
  Object.assign(common, wanted.secured ? secured : {});
  return new OPCUAServer({ ...common, registerServerMethod, discoveryServerEndpointUrl: wanted.register });
}

main();
