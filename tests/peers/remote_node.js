// A discovery handler on @grpc/grpc-js: each file in the directory of discoveryDetails is a device.
//
// node remote_node.js NAME, with DISCOVERY_HANDLERS_DIRECTORY and NODE_PATH in the environment.
const fs = require('fs');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const contract = loader.loadSync(path.join(__dirname, '../../proto/discovery.proto'), { keepCase: true });
const { DiscoveryHandler, Registration } = grpc.loadPackageDefinition(contract).v0;

function discover(call) {
  const directory = call.request.discovery_details.trim();
  if (!path.isAbsolute(directory)) {
    call.emit('error', { code: grpc.status.INVALID_ARGUMENT, details: `'${directory}' is not an absolute path` });
    return;
  }
  let sent = null;
  const look = () => {
    const names = fs.existsSync(directory) ? fs.readdirSync(directory).sort() : [];
    if (JSON.stringify(names) === sent) return;
    call.write({ devices: names.map((name) => ({ id: name, properties: { FILE: name } })) });
    sent = JSON.stringify(names);
  };
  look();
  const timer = setInterval(look, 200);
  call.on('cancelled', () => clearInterval(timer));
}

const name = process.argv[2];
const directory = process.env.DISCOVERY_HANDLERS_DIRECTORY;
const socket = path.join(directory, `${name}.sock`);
fs.rmSync(socket, { force: true });
const server = new grpc.Server();
server.addService(DiscoveryHandler.service, { Discover: discover });
server.bindAsync(`unix:${socket}`, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error;
  const agent = new Registration(`unix:${directory}/agent-registration.sock`, grpc.credentials.createInsecure());
  agent.waitForReady(Infinity, () => {
    agent.RegisterDiscoveryHandler({ name, endpoint: socket, shared: false }, (failure) => {
      if (failure) throw failure;
      agent.close();
    });
  });
});
