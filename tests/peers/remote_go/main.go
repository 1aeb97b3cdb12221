// A discovery handler on grpc-go: each file in the directory of discoveryDetails is a device.
//
// remote_go NAME, with DISCOVERY_HANDLERS_DIRECTORY in the environment. The messages are written by hand from
// proto/discovery.proto, so that no generator is needed.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type registerRequest struct {
	Name     string `protobuf:"bytes,1,opt,name=name,proto3"`
	Endpoint string `protobuf:"bytes,2,opt,name=endpoint,proto3"`
}

type empty struct{}

type discoverRequest struct {
	Details string `protobuf:"bytes,1,opt,name=discovery_details,proto3"`
}

type discoverResponse struct {
	Devices []*device `protobuf:"bytes,1,rep,name=devices,proto3"`
}

type device struct {
	Id         string            `protobuf:"bytes,1,opt,name=id,proto3"`
	Properties map[string]string `protobuf:"bytes,2,rep,name=properties,proto3" protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
}

func (m *registerRequest) Reset()         { *m = registerRequest{} }
func (m *registerRequest) String() string { return fmt.Sprintf("%+v", *m) }
func (*registerRequest) ProtoMessage()    {}

func (m *empty) Reset()       {}
func (*empty) String() string { return "{}" }
func (*empty) ProtoMessage()  {}

func (m *discoverRequest) Reset()         { *m = discoverRequest{} }
func (m *discoverRequest) String() string { return fmt.Sprintf("%+v", *m) }
func (*discoverRequest) ProtoMessage()    {}

func (m *discoverResponse) Reset()         { *m = discoverResponse{} }
func (m *discoverResponse) String() string { return fmt.Sprintf("%+v", *m) }
func (*discoverResponse) ProtoMessage()    {}

func (m *device) Reset()         { *m = device{} }
func (m *device) String() string { return fmt.Sprintf("%+v", *m) }
func (*device) ProtoMessage()    {}

func discover(_ interface{}, stream grpc.ServerStream) error {
	var request discoverRequest
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	directory := strings.TrimSpace(request.Details)
	if !filepath.IsAbs(directory) {
		return status.Errorf(codes.InvalidArgument, "'%s' is not an absolute path", directory)
	}
	var sent []string
	for first := true; stream.Context().Err() == nil; first = false {
		names, err := filepath.Glob(filepath.Join(directory, "*"))
		if err != nil {
			return err
		}
		if first || !reflect.DeepEqual(names, sent) {
			response := &discoverResponse{}
			for _, path := range names {
				name := filepath.Base(path)
				response.Devices = append(response.Devices, &device{Id: name, Properties: map[string]string{"FILE": name}})
			}
			if err := stream.SendMsg(response); err != nil {
				return err
			}
			sent = names
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// Dials as device plugins in Go do: by the bare path, which is then the :authority.
func register(name, directory, socket string) {
	dialer := func(ctx context.Context, path string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	agent := filepath.Join(directory, "agent-registration.sock")
	conn, err := grpc.Dial(agent, grpc.WithInsecure(), grpc.WithContextDialer(dialer), grpc.WithBlock())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	request := &registerRequest{Name: name, Endpoint: socket}
	if err := conn.Invoke(context.Background(), "/v0.Registration/RegisterDiscoveryHandler", request, &empty{}); err != nil {
		log.Fatal(err)
	}
}

func main() {
	name, directory := os.Args[1], os.Getenv("DISCOVERY_HANDLERS_DIRECTORY")
	socket := filepath.Join(directory, name+".sock")
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "v0.DiscoveryHandler",
		HandlerType: (*interface{})(nil),
		Streams:     []grpc.StreamDesc{{StreamName: "Discover", Handler: discover, ServerStreams: true}},
	}, struct{}{})
	go register(name, directory, socket)
	log.Fatal(server.Serve(listener))
}
