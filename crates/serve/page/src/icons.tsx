// Icons of the set Lucide, and the flame of the name.
import type { IconNode } from "lucide";
import { h } from "preact";

export function Icon({ of, size = 18 }: { of: IconNode; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.75" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      {of.map(([tag, attributes]) => h(tag, attributes as Record<string, string>))}
    </svg>
  );
}

export function Flame({ size = 24 }: { size?: number }) {
  return (
    <svg class="flame" width={size} height={size} viewBox="0 0 32 32" aria-hidden="true">
      <path class="flame-outer" d="M17.5 2c.9 5.2-2 7.700-4.600 10.600C10.300 15.500 8 18.300 8 22a8 8 0 0 0 16 0c0-4.200-2-6.600-3.200-8.900-.4 1.700-1.200 2.900-2.500 3.700C19.500 11.700 20.300 6.300 17.500 2Z" />
      <path class="flame-inner" d="M16.300 17.500c.2 2.200-1 3.200-2 4.400-.8.900-1.300 1.800-1.300 3a3.500 3.500 0 0 0 7 0c0-2.900-2.100-4.300-3.700-7.400Z" />
    </svg>
  );
}
