fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto/discovery.proto");
    let contract = protox::compile(["discovery.proto"], ["../../proto"])?;
    tonic_prost_build::configure().compile_fds(contract)?;
    Ok(())
}
