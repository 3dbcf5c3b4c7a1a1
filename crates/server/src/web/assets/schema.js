// Checks of JSON texts: tool definitions, and replies against a JSON schema.

const TYPES = {
  object: (value) => value !== null && typeof value === 'object' && !Array.isArray(value),
  array: Array.isArray,
  string: (value) => typeof value === 'string',
  number: (value) => typeof value === 'number',
  integer: Number.isInteger,
  boolean: (value) => typeof value === 'boolean',
  null: (value) => value === null,
};

const equal = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/**
 * The first place where `value` differs from `schema`, as a text, or null. Accepts what other
 * keywords demand: the server enforces the whole schema, this check only shows a reply's state.
 */
export function mismatch(value, schema, root = schema, path = '$', depth = 0) {
  if (schema === false) return `${path}: nothing is allowed here`;
  if (!TYPES.object(schema) || depth > 64) return null;
  const inner = (part, against, at) => mismatch(part, against, root, at, depth + 1);
  if (schema.$ref?.startsWith('#')) {
    const parts = schema.$ref.slice(1).split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
    const target = parts.reduce((at, part) => at?.[part], root);
    return target === undefined ? null : inner(value, target, path);
  }
  const types = [schema.type ?? []].flat();
  if (types.length && !types.some((type) => TYPES[type]?.(value))) return `${path}: expected ${types.join(' or ')}`;
  if (schema.enum && !schema.enum.some((option) => equal(option, value))) return `${path}: not one of the allowed values`;
  if ('const' in schema && !equal(schema.const, value)) return `${path}: not the required value`;
  const options = schema.anyOf ?? schema.oneOf;
  if (options && !options.some((option) => !inner(value, option, path))) return `${path}: matches none of the alternatives`;
  for (const part of schema.allOf ?? []) {
    const found = inner(value, part, path);
    if (found) return found;
  }
  if (typeof value === 'number') {
    if (value < schema.minimum) return `${path}: below ${schema.minimum}`;
    if (value > schema.maximum) return `${path}: above ${schema.maximum}`;
  }
  const size = typeof value === 'string' ? [...value].length : Array.isArray(value) ? value.length : null;
  if (size !== null) {
    if (size < (schema.minLength ?? schema.minItems)) return `${path}: too short`;
    if (size > (schema.maxLength ?? schema.maxItems)) return `${path}: too long`;
  }
  return mismatchInside(value, schema, path, inner);
}

function mismatchInside(value, schema, path, inner) {
  if (Array.isArray(value)) {
    for (const [index, item] of value.entries()) {
      const against = schema.prefixItems?.[index] ?? schema.items;
      const found = against !== undefined && inner(item, against, `${path}[${index}]`);
      if (found) return found;
    }
  } else if (TYPES.object(value)) {
    const missing = (schema.required ?? []).find((name) => !Object.hasOwn(value, name));
    if (missing !== undefined) return `${path}: lacks "${missing}"`;
    for (const [name, item] of Object.entries(value)) {
      const known = Object.hasOwn(schema.properties ?? {}, name);
      const against = known ? schema.properties[name] : (schema.additionalProperties ?? true);
      const found = !(known === false && schema.patternProperties) && inner(item, against, `${path}.${name}`);
      if (found) return found;
    }
  }
  return null;
}

/** Parses JSON: `{value}` or `{error}`. */
export function parse(text) {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: `Not JSON: ${error.message}` };
  }
}

/** Tool definitions of a text: `{tools}` or `{error}`. */
export function parseTools(text) {
  const { value, error } = parse(text);
  if (error) return { error };
  const tools = Array.isArray(value) ? value : value?.tools;
  if (!Array.isArray(tools) || !tools.length) return { error: 'Expected a list of tools' };
  const names = new Set();
  for (const [index, tool] of tools.entries()) {
    const { name, parameters } = tool?.function ?? {};
    if (tool?.type !== 'function' || typeof name !== 'string') return { error: `Tool ${index + 1} needs "type": "function" and "function": {"name": …}` };
    if (!/^[\w-]{1,64}$/.test(name)) return { error: `"${name}": letters, digits, _ and - only, at most 64` };
    if (names.has(name)) return { error: `"${name}" is there twice` };
    if (parameters !== undefined && !TYPES.object(parameters)) return { error: `"${name}": parameters must be a JSON schema` };
    names.add(name);
  }
  return { tools };
}

/** JSON schema of a text: `{schema}` or `{error}`. */
export function parseSchema(text) {
  const { value, error } = parse(text);
  if (error) return { error };
  return TYPES.object(value) ? { schema: value } : { error: 'Expected an object' };
}
