//! An upper bound on the memory of a component's instances beside their memories and tables. The engine keeps globals, functions
//! and imports of each core instance in a context, and no limiter counts it: a million globals in each of 240 instances are
//! gigabytes.

use wasmparser::{BinaryReaderError, Encoding, Instance, Parser, Payload};

use crate::limiter::INSTANCES;

/// Bytes of an instance without anything in it.
const INSTANCE: u64 = 1 << 10;
/// Bytes of a global.
const GLOBAL: u64 = 16;
/// Bytes of a function that may be referred to, of an import, of a table or memory, about.
const ITEM: u64 = 40;
/// Bytes of a type.
const TYPE: u64 = 8;

/// Returns the bytes that the contexts of a component's instances take at most: all have the size of its largest module's. The
/// component is not validated: the compiler refuses what makes no sense.
pub(crate) fn context_bytes(component: &[u8]) -> Result<u64, BinaryReaderError> {
    let (mut module, mut largest, mut instances) = (0, 0, 0);
    let mut open = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        let bytes = match payload? {
            Payload::Version { encoding, .. } => {
                open.push(encoding);
                module = INSTANCE;
                0
            }
            Payload::End(_) => {
                open.pop();
                0
            }
            Payload::InstanceSection(section) => {
                let made = section.into_iter().filter(|of| matches!(of, Ok(Instance::Instantiate { .. })));
                // A component inside of another one may be instantiated any number of times.
                let times = if open.len() == 1 { 1 } else { INSTANCES };
                instances = made.count().saturating_mul(times).saturating_add(instances);
                0
            }
            Payload::GlobalSection(globals) => u64::from(globals.count()) * GLOBAL,
            Payload::FunctionSection(functions) => u64::from(functions.count()) * ITEM,
            Payload::ImportSection(imports) => imports.into_imports().count() as u64 * ITEM,
            Payload::TableSection(tables) => u64::from(tables.count()) * ITEM,
            Payload::MemorySection(memories) => u64::from(memories.count()) * ITEM,
            Payload::TypeSection(types) => u64::from(types.count()) * TYPE,
            _ => 0,
        };
        if let Some(Encoding::Module) = open.last() {
            module += bytes;
            largest = largest.max(module);
        }
    }
    // A store has no more instances than that.
    Ok(largest.saturating_mul(instances.min(INSTANCES) as u64))
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        ComponentBuilder, ComponentExportKind, ConstExpr, GlobalSection, GlobalType, Module, ModuleArg, ValType,
    };

    use super::*;

    fn module(globals: usize) -> Module {
        let (mut module, mut section) = (Module::new(), GlobalSection::new());
        let global = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
        for _ in 0..globals {
            section.global(global, &ConstExpr::i64_const(0));
        }
        module.section(&section);
        module
    }

    /// A component with so many instances of a module of so many globals, beside a module without any.
    fn component(instances: usize, globals: usize) -> ComponentBuilder {
        let mut component = ComponentBuilder::default();
        let module = component.core_module(None, &module(globals));
        component.core_module(None, &Module::new());
        for _ in 0..instances {
            component.core_instantiate(None, module, Vec::<(&str, ModuleArg)>::new());
        }
        component
    }

    #[test]
    fn every_instance_counts_as_one_of_the_largest_module() {
        let one = INSTANCE + 2 * GLOBAL;
        assert_eq!(context_bytes(&component(3, 2).finish()).unwrap(), 3 * one);
        assert_eq!(context_bytes(&component(1000, 2).finish()).unwrap(), INSTANCES as u64 * one);
        assert_eq!(context_bytes(&component(0, 2).finish()).unwrap(), 0);
    }

    #[test]
    fn instances_of_nested_components_count_as_often_as_possible() {
        let mut outer = ComponentBuilder::default();
        let inner = outer.component(None, component(1, 5));
        let none = Vec::<(&str, ComponentExportKind, u32)>::new;
        outer.instantiate(None, inner, none());
        assert_eq!(context_bytes(&outer.finish()).unwrap(), INSTANCES as u64 * (INSTANCE + 5 * GLOBAL));
    }

    #[test]
    fn damaged_components_are_refused() {
        assert!(context_bytes(b"no").is_err());
    }
}
